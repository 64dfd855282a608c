#!/usr/bin/env python3
"""Commits to PostgreSQL and changes files durably beside it, noting when each piece of work began and when it was done; tells
afterwards whether what is left is a state that there was, and as of when.

    dated_work.py prepare SOCKET_DIR DIRECTORY --clients N      once
    dated_work.py load SOCKET_DIR DIRECTORY LOG --clients N     until the disk below goes away
    dated_work.py check SOCKET_DIR DIRECTORY LOG --as-of TIME [--only files]

Half of the clients are connections to PostgreSQL, half change files of a directory of their own: they replace one by a new one
(write, fsync, rename, fsync of the directory) or remove one. Each does one piece of work after the other, numbered 1, 2,
3 ... Another thread makes, renames and removes many files without any sync, for the file system's journal to be busy.

LOG lies elsewhere, on a disk that goes on: a line when a piece begins and one when it is done (times in seconds since 1970). `check`
finds out of every client how many of its pieces are there, which must be the first ones without a gap, and demands that

- whatever was done before TIME is there;
- nothing is there that began after something was done that is missing: the order of completion, across all clients.

It prints JSON: `there` and `missing` pieces, `behind_s` (how old the newest state is, by the oldest missing piece), and `faults`, sentences.
"""

import json
import os
import random
import shutil
import sys
import threading
import time

from postgresql_commits import Connection, Gone, Refused, prepare

# Files of a client at a time.
SLOTS = 12
# Bytes of a file, at most.
FILE_BYTES_MAX = 48 << 10
# Directories that the thread without syncs keeps, and files in each.
HEAP_DIRECTORIES = 24
HEAP_FILES = 16


def is_database(client):
    return client % 2 == 0


def directory_of(directory, client):
    return os.path.join(directory, f"client-{client}")


def prepare_all(sockets, directory, clients):
    prepare(sockets, clients)
    for client in range(clients):
        if not is_database(client):
            os.makedirs(directory_of(directory, client))


def planned(client, seq, state):
    """What piece `seq` of a client does to its files: a slot, and its new content or None to remove it. Never nothing."""
    chance = random.Random(client * 1_000_003 + seq)
    slot = chance.randrange(SLOTS)
    if state.get(slot) is not None and chance.random() < 0.25:
        return slot, None
    return slot, seq


def content(client, seq):
    chance = random.Random(client * 7_000_003 + seq)
    return f"{client} {seq}\n".encode() + chance.randbytes(chance.randrange(64, FILE_BYTES_MAX))


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def carry_out(path, client, slot, seq):
    place = os.path.join(path, f"slot-{slot}")
    if seq is None:
        os.unlink(place)
    else:
        with open(place + ".new", "wb") as file:
            file.write(content(client, seq))
            file.flush()
            os.fsync(file.fileno())
        os.rename(place + ".new", place)
    sync_directory(path)


def change_files(path, client, begins, done):
    state, seq = {}, 0
    while True:
        seq += 1
        slot, new = planned(client, seq, state)
        begins(seq)
        carry_out(path, client, slot, new)
        state[slot] = new
        done(seq)


def commit(sockets, client, begins, done):
    connection = Connection(sockets)
    seq = 0
    while True:
        seq += 1
        filler = "x" * random.randrange(1500)
        begins(seq)
        connection.query(
            f"INSERT INTO ledger VALUES ({client}, {seq}, '{filler}');"
            f"UPDATE counter SET seq = {seq} WHERE client = {client}"
        )
        done(seq)


def heap(path, stop):
    """Metadata for its own sake: nobody looks at these files again but e2fsck."""
    turn = 0
    while not stop.is_set():
        turn += 1
        directory = os.path.join(path, f"d{turn % HEAP_DIRECTORIES}")
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        for n in range(HEAP_FILES):
            name = os.path.join(directory, f"f{n}")
            with open(name, "wb") as file:
                file.write(b"y" * random.randrange(9000))
            if n % 3 == 0:
                os.rename(name, os.path.join(path, f"moved-{random.randrange(64)}"))
        if turn % 8 == 0:
            sync_directory(directory)
        time.sleep(0.005)


def load(sockets, directory, log, clients):
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    stop = threading.Event()

    def note(what, client, seq):
        os.write(file, f"{what} {client} {seq} {time.time():.6f}\n".encode())

    def work(client):
        begins, done = (lambda seq: note("begun", client, seq)), (lambda seq: note("done", client, seq))
        try:
            if is_database(client):
                commit(sockets, client, begins, done)
            else:
                change_files(directory_of(directory, client), client, begins, done)
        except (Gone, Refused, OSError):
            # The disk below is gone.
            stop.set()

    def make_heap():
        try:
            heap(os.path.join(directory, "heap"), stop)
        except OSError:
            stop.set()

    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    threads.append(threading.Thread(target=make_heap))
    for thread in threads:
        thread.start()
    print("writing", flush=True)
    for thread in threads:
        thread.join()


def read_log(log):
    """Of each client, when its pieces began and when they were done, by number."""
    begun, done = {}, {}
    with open(log) as lines:
        for line in lines:
            what, client, seq, at = line.split()
            times = begun if what == "begun" else done
            times.setdefault(int(client), {})[int(seq)] = float(at)
    return begun, done


def files_there(directory, client, last, faults):
    """How many pieces of a client's work on files are there: the least and the most that its files could mean."""
    path, seen = directory_of(directory, client), {}
    for name in os.listdir(path):
        if name.endswith(".new"):
            continue
        with open(os.path.join(path, name), "rb") as file:
            data = file.read()
        try:
            owner, seq = map(int, data.split(b"\n", 1)[0].split())
        except ValueError:
            owner, seq = None, None
        if owner != client or data != content(client, seq):
            faults.append(f"file {name} of client {client} has not the content of any piece")
            continue
        seen[int(name.removeprefix("slot-"))] = seq
    state, matches = {}, [0] if not seen else []
    for seq in range(1, last + 1):
        slot, new = planned(client, seq, state)
        state[slot] = new
        if {s: n for s, n in state.items() if n is not None} == seen:
            matches.append(seq)
    if not matches:
        faults.append(f"the files of client {client} are as they never were: {seen}")
        return None
    return min(matches), max(matches)


def rows_there(connection, client, faults):
    rows = connection.query(f"SELECT count(*), min(seq), max(seq) FROM ledger WHERE client = {client}")
    count, least, most = (int(n or 0) for n in rows[0])
    if count != most or (count and least != 1):
        faults.append(f"client {client} has {count} rows from {least} to {most}")
        return None
    counters = connection.query(f"SELECT seq FROM counter WHERE client = {client}")
    if count and [int(c) for (c,) in counters] != [count]:
        faults.append(f"half a transaction of client {client}: counter {counters}, {count} rows")
    return count, count


def check(sockets, directory, log, as_of, only_files):
    begun, done = read_log(log)
    faults, found = [], {}
    connection = None if only_files else Connection(sockets)
    for client in begun:
        last = max(begun[client])
        if not is_database(client):
            found[client] = files_there(directory, client, last, faults)
        elif connection:
            found[client] = rows_there(connection, client, faults)
    found = {client: span for client, span in found.items() if span}
    there = missing = 0
    # The earliest end of anything that is missing.
    earliest = (float("inf"), "nothing")
    for client, (_, most) in found.items():
        there += most
        lost = {seq: at for seq, at in done.get(client, {}).items() if seq > most}
        missing += len(lost)
        for seq, at in lost.items():
            earliest = min(earliest, (at, f"piece {seq} of client {client}"))
    if earliest[0] < as_of:
        faults.append(f"{earliest[1]} is missing, which was done {as_of - earliest[0]:.3f} s before the recovery point")
    for client, (least, _) in found.items():
        if least and begun[client][least] > earliest[0]:
            later = begun[client][least] - earliest[0]
            faults.append(
                f"piece {least} of client {client} is there, which began {later:.3f} s after {earliest[1]} was done, "
                "which is missing"
            )
    ends = [at for times in done.values() for at in times.values()]
    behind = max(0.0, max(ends, default=0.0) - earliest[0])
    print(json.dumps({"there": there, "missing": missing, "behind_s": round(behind, 3), "faults": faults}))


def main():
    match sys.argv[1:]:
        case ["prepare", sockets, directory, "--clients", clients]:
            prepare_all(sockets, directory, int(clients))
        case ["load", sockets, directory, log, "--clients", clients]:
            load(sockets, directory, log, int(clients))
        case ["check", sockets, directory, log, "--as-of", as_of, *only]:
            check(sockets, directory, log, float(as_of), only == ["--only", "files"])
        case _:
            sys.exit(__doc__)


main()
