#!/usr/bin/env python3
"""Flips a bit of a cache image in a place of a given kind, and prints where.

    places.py FOREBAY CACHE KIND SEED

Kinds: superblock-a, superblock-b, record (header or data of a record of the log
that a later one proves durable), summary (of a sealed segment),
clean-data and dirty-data (of a block that is clean or dirty). `forebay inspect` tells where they are.
"""

import json
import random
import subprocess
import sys


def inspect(forebay, cache, *arguments):
    command = [forebay, "inspect", cache, "--json", "--log", "off", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def data_of(forebay, cache, shown, state):
    """Offset of the data of a block in this state."""
    blocks = [
        extent["block"] + n
        for record in shown["records"]
        for extent in record["extents"]
        if extent["kind"] == "data"
        for n in range(extent["count"])
    ]
    random.shuffle(blocks)
    for block in blocks:
        history = inspect(forebay, cache, "--block", str(block))
        if history["state"] == state:
            (current,) = [m for m in history["mentions"] if m["current"]]
            return current["data_offset"] + random.randrange(4096)
    sys.exit(f"no block is {state}")


def place(forebay, cache, kind):
    shown = inspect(forebay, cache, "--records", "100000")
    constants = {c["name"]: c["value"] for c in shown["constants"]}
    match kind:
        case "superblock-a" | "superblock-b":
            # The first bytes say what it is; without them it is no superblock at all.
            return constants[f"SUPERBLOCK_OFFSET_{kind[-1].upper()}"] + random.randrange(8, 64)
        case "record":
            # The last one proves the others; nothing proves it, so that damage to it looks like a write torn by the crash.
            record = random.choice(shown["records"][:-1])
            blocks = sum(e["count"] for e in record["extents"] if e["kind"] in ("data", "clean"))
            data = record["bytes"] - 4096 * blocks
            # What lies between header and data says nothing.
            header = 112 + 16 * len(record["extents"]) + 4 * blocks
            return record["offset"] + random.choice([*range(header), *range(data, record["bytes"])])
        case "summary":
            segment = random.choice([s for s in shown["segments"] if s["sealed"]])
            # A summary ends its segment, its trailer the summary; the rest of the trailer's unit says nothing.
            geometry = shown["geometry"]
            return segment["offset"] + geometry["segment_bytes"] - geometry["align"] + random.randrange(12, 108)
        case "clean-data" | "dirty-data":
            return data_of(forebay, cache, shown, kind.removesuffix("-data"))
    sys.exit(__doc__)


def main():
    forebay, cache, kind, seed = sys.argv[1:]
    random.seed(int(seed))
    at = place(forebay, cache, kind)
    with open(cache, "r+b") as image:
        image.seek(at)
        byte = image.read(1)[0]
        image.seek(at)
        image.write(bytes([byte ^ (1 << random.randrange(8))]))
    print(at)


main()
