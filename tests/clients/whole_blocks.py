#!/usr/bin/env python3
"""Writes whole blocks of 4 KiB, for which a volume need not ask its backing, and compares them.

whole_blocks.py URI STATE write COUNT: writes so many at random, with a flush now and then, one after the other, and notes them in STATE.
whole_blocks.py URI STATE verify: reads all that were written, and ends with 1 if one is not as it was written last.
"""
import json
import os
import random
import sys

import nbd

BLOCK = 4096


def content(number, time):
    return f"block {number}, written {time} ".encode().ljust(64, b".") * (BLOCK // 64)


def main(uri, path, action, count="0"):
    state = {}
    if os.path.exists(path):
        with open(path, encoding="ascii") as file:
            state = {int(number): time for number, time in json.load(file).items()}
    handle = nbd.NBD()
    handle.connect_uri(uri)
    if action == "verify":
        wrong = [n for n, time in state.items() if handle.pread(BLOCK, n * BLOCK) != content(n, time)]
        if wrong or not state:
            sys.exit(f"whole_blocks.py: of {len(state)} blocks {len(wrong)} are wrong: {wrong[:10]}")
        return
    for written in range(int(count)):
        number = random.randrange(handle.get_size() // BLOCK)
        state[number] = state.get(number, 0) + 1
        handle.pwrite(content(number, state[number]), number * BLOCK)
        if written % 16 == 15:
            handle.flush()
    with open(path, "w", encoding="ascii") as file:
        json.dump(state, file)


main(*sys.argv[1:])
