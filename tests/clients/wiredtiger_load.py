#!/usr/bin/env python3
"""A document store on WiredTiger as MongoDB drives it: client threads, a journal, checkpoints and eviction (YCSB A).

    wiredtiger_load.py run DIRECTORY --seconds S [--threads N] [--sync commit|flusher] [--seed N] [--acknowledged FILE]
                           [--warm S] [--latencies FILE]
    wiredtiger_load.py load DIRECTORY                                             only makes the records, if there are none
    wiredtiger_load.py check DIRECTORY --acknowledged FILE                        after a crash: all that was acknowledged is there

The package `wiredtiger` (PyPI) is needed. Half of the operations read a record of 1000 bytes, half of them replace one, by
YCSB's Zipfian law (0.99). An update is durable before it counts as done:

    commit    its own thread syncs the log with the commit (`sync=on`; WiredTiger joins those that come together)
    flusher   one thread flushes the log for all that wait, as MongoDB's journal flusher does

Threads have the names that they have in MongoDB: `conn1`, `conn2` and so on, `JournalFlusher`, `Checkpointer`; WiredTiger names its
own (`eviction-server` and others). `run` says `running` on standard error when the clients begin, and prints one line of JSON when they
have ended; times are in milliseconds there. With --warm it begins to count later, and says `counting` then. FILE gets what each
operation took that counts, in microseconds as unsigned numbers of 32 bits. What was under way when the time was over counts, too, but
in no rate: it is `operations_late`. It ends with 3 if the disk fails under it. A checkpoint begins each --checkpoint seconds, counted
from the end of the one before.

With --acknowledged each update that was acknowledged is a line of that file, which must not be on the disk under test. An
update then also puts its number into a row of its client, in the same transaction, so that `check` sees half transactions.
"""

import argparse
import array
import ctypes
import json
import os
import random
import struct
import sys
import threading
import time

import wiredtiger

TABLE = "table:usertable"
COUNTERS = "table:counters"
ZIPF = 0.99
VALUE_BYTES = 1000
# Of a value: client, number of the update, record. Then bytes that follow from the first two.
HEAD = struct.Struct("<IQQ")
FILL = random.Random(1).randbytes(1 << 16)
PERCENTILES = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999), ("p99_999", 0.99999)]
PR_SET_NAME = 15
LIBC = ctypes.CDLL(None)


def call_thread(name):
    LIBC.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def key_of(record):
    return f"user{record:012d}"


def value_of(client, number, record):
    at = (client * 7919 + number * 31) % (len(FILL) - VALUE_BYTES)
    return HEAD.pack(client, number, record) + FILL[at : at + VALUE_BYTES - HEAD.size]


class Zipf:
    """Records by popularity, as YCSB's ScrambledZipfianGenerator: Gray et al., SIGMOD'94, section 3.2; then scattered."""

    def __init__(self, records):
        self.records = records
        self.zeta = sum(1 / rank**ZIPF for rank in range(1, records + 1))
        self.alpha = 1 / (1 - ZIPF)
        zeta_2 = 1 + 0.5**ZIPF
        self.eta = (1 - (2 / records) ** (1 - ZIPF)) / (1 - zeta_2 / self.zeta)

    def draw(self, dice):
        u = dice.random()
        uz = u * self.zeta
        if uz < 1:
            rank = 0
        elif uz < 1 + 0.5**ZIPF:
            rank = 1
        else:
            rank = int(self.records * (self.eta * u - self.eta + 1) ** self.alpha)
        return (rank * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF) % self.records


class Flusher:
    """One thread flushes the log for all. Who commits waits for a flush that begins after the commit."""

    def __init__(self, connection):
        self.session = connection.open_session()
        lock = threading.Lock()
        self.wanted, self.ended = threading.Condition(lock), threading.Condition(lock)
        self.waiting = False
        self.begun = self.done = 0
        self.closing = False

    def run(self):
        while True:
            with self.wanted:
                while not self.waiting and not self.closing:
                    self.wanted.wait()
                if not self.waiting:
                    return
                self.waiting = False
                self.begun += 1
            self.session.log_flush("sync=on")
            with self.ended:
                self.done = self.begun
                self.ended.notify_all()

    def wait(self):
        with self.wanted:
            mine = self.begun + 1
            self.waiting = True
            self.wanted.notify()
            while self.done < mine:
                self.ended.wait()

    def close(self):
        with self.wanted:
            self.closing = True
            self.wanted.notify()


class Load:
    def __init__(self, connection, args):
        self.connection, self.args = connection, args
        self.zipf = Zipf(args.records)
        self.flusher = Flusher(connection) if args.sync == "flusher" else None
        self.stop = threading.Event()
        self.reads, self.updates = array.array("d"), array.array("d")
        self.retries = [0] * args.threads
        self.checkpoints, self.checkpoint_began = [], None
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.acknowledged = os.open(args.acknowledged, flags, 0o644) if args.acknowledged else None

    def client(self, index):
        """One client: an operation after the other."""
        client = self.args.first_client + index
        call_thread(f"conn{client}")
        dice = random.Random((self.args.seed << 20) + client)
        session = self.connection.open_session()
        table, counters = session.open_cursor(TABLE), session.open_cursor(COUNTERS)
        number = 0
        while not self.stop.is_set():
            record = self.zipf.draw(dice)
            began = time.monotonic()
            if dice.random() < 0.5:
                table.set_key(key_of(record))
                if table.search() != 0:
                    raise LookupError(f"record {record} is gone")
                table.get_value()
                table.reset()
                self.reads.append(time.monotonic() - began)
                continue
            number += 1
            attempts = 1
            while not self.update(session, table, counters, client, number, record):
                self.retries[index] += 1
                back_off(attempts)
                attempts += 1
            if self.flusher:
                self.flusher.wait()
            ended = time.monotonic()
            self.updates.append(ended - began)
            if self.acknowledged is not None:
                line = f"{client} {number} {record} {began:.6f} {ended:.6f}\n"
                os.write(self.acknowledged, line.encode())

    def update(self, session, table, counters, client, number, record):
        """One attempt; false if another transaction was there first, as MongoDB tries again then."""
        session.begin_transaction("isolation=snapshot")
        try:
            table[key_of(record)] = value_of(client, number, record)
            if self.acknowledged is not None:
                counters[f"client{client:06d}"] = number
            session.commit_transaction("sync=off" if self.flusher else "sync=on")
            return True
        except wiredtiger.WiredTigerError as e:
            if wiredtiger.wiredtiger_strerror(wiredtiger.WT_ROLLBACK) not in str(e):
                raise
            session.rollback_transaction()
            return False

    def checkpointer(self):
        call_thread("Checkpointer")
        session = self.connection.open_session()
        while not self.stop.wait(self.args.checkpoint):
            self.checkpoint_began = time.monotonic()
            session.checkpoint()
            self.checkpoints.append(time.monotonic() - self.checkpoint_began)
            self.checkpoint_began = None

    def journal_flusher(self):
        call_thread("JournalFlusher")
        self.flusher.run()

    def run(self):
        clients = [self.thread(self.client, index) for index in range(self.args.threads)]
        others = [self.thread(self.checkpointer)]
        if self.flusher:
            others.append(self.thread(self.journal_flusher))
        print("running", file=sys.stderr, flush=True)
        for thread in others + clients:
            thread.start()
        if self.args.warm:
            time.sleep(self.args.warm)
            self.reads, self.updates, self.checkpoints = array.array("d"), array.array("d"), []
            self.retries = [0] * self.args.threads
        print("counting", file=sys.stderr, flush=True)
        began = time.monotonic()
        time.sleep(self.args.seconds)
        self.stop.set()
        seconds = time.monotonic() - began
        within = len(self.reads), len(self.updates)
        checkpoints, running = self.checkpoints[:], self.checkpoint_began
        running_seconds = None if running is None else time.monotonic() - running
        for thread in clients:
            thread.join()
        print(json.dumps(self.figures(seconds, within, checkpoints, running_seconds)), flush=True)
        if self.flusher:
            self.flusher.close()
        for thread in others:
            thread.join()

    def thread(self, work, *args):
        def whole():
            try:
                work(*args)
            except BaseException as e:
                # WiredTiger does not go on after its disk has failed, and may not end either.
                print(f"{threading.current_thread().name}: {e}", file=sys.stderr, flush=True)
                os._exit(3)

        return threading.Thread(target=whole, daemon=True)

    def figures(self, seconds, within, checkpoints, running_seconds):
        """Of so many reads and updates that ended within the seconds, and of those that were under way then: they may be the longest."""
        reads, updates = self.reads, self.updates
        operations = sum(within)
        if self.args.latencies:
            with open(self.args.latencies, "wb") as file:
                array.array("I", (min(int(1e6 * took), 2**32 - 1) for took in reads + updates)).tofile(file)
        return {
            "sync": self.args.sync,
            "threads": self.args.threads,
            "seconds": seconds,
            "operations": operations,
            "operations_late": len(reads) + len(updates) - operations,
            "operations_per_second": operations / seconds,
            "updates_per_second": within[1] / seconds,
            "retries": sum(self.retries),
            "latency_ms": distribution(reads + updates),
            "update_latency_ms": distribution(updates),
            "read_latency_ms": distribution(reads),
            "checkpoints": len(checkpoints),
            "checkpoint_ms": [1e3 * took for took in checkpoints],
            "checkpoint_running_ms": None if running_seconds is None else 1e3 * running_seconds,
        }


def back_off(attempts):
    """As MongoDB does after so many write conflicts of one operation (`logAndBackoff`)."""
    if attempts >= 4:
        time.sleep(0.001 if attempts < 10 else 0.005 if attempts < 100 else 0.01)


def distribution(seconds):
    """Percentiles in milliseconds: the smallest value that so many are not above."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {name: ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))] for name, share in PERCENTILES}
    at["max"] = ordered[-1]
    return {name: 1e3 * value for name, value in at.items()}


def open_database(args):
    """WiredTiger with what MongoDB gives it, but that nothing is compressed; recovers if it has to."""
    os.makedirs(f"{args.directory}/journal", exist_ok=True)
    return wiredtiger.wiredtiger_open(
        args.directory,
        f"create,cache_size={args.cache_mib}M,session_max=1000,eviction=(threads_min=4,threads_max=4),config_base=false,"
        f"statistics=(fast),log=(enabled=true,remove=true,path=journal,file_max={args.log_mib}M),checkpoint=(wait=0),"
        "file_manager=(close_idle_time=600,close_scan_interval=10,close_handle_minimum=2000)",
    )


def make_records(connection, args):
    """The records, each as no client has written it yet; and a checkpoint."""
    session = connection.open_session()
    config = "allocation_size=4KB,leaf_page_max=32KB,leaf_value_max=64MB,memory_page_max=10m,split_pct=90,log=(enabled=true),block_compressor=none"
    # Made last, so that it is there only if all is.
    cursor = session.open_cursor("metadata:")
    cursor.set_key(COUNTERS)
    is_there = cursor.search() == 0
    cursor.close()
    if not is_there:
        session.create(TABLE, f"key_format=S,value_format=u,{config}")
        bulk = session.open_cursor(TABLE, None, "bulk")
        for record in range(args.records):
            bulk[key_of(record)] = value_of(0, 0, record)
        bulk.close()
        session.create(COUNTERS, f"key_format=S,value_format=Q,{config}")
        session.checkpoint()
    session.close()


def check(connection, args):
    """Recovery has been: each record is as its last acknowledged update, or one that came later, has left it."""
    updates, last, of_record = {}, {}, {}
    with open(args.acknowledged, encoding="ascii") as lines:
        for line in lines:
            client, number, record, began, ended = line.split()
            update = (int(client), int(number), int(record), float(began), float(ended))
            updates[update[:2]] = update
            last[update[0]] = max(last.get(update[0], 0), update[1])
            of_record.setdefault(update[2], []).append(update)
    session = connection.open_session()
    for table in TABLE, COUNTERS:
        session.verify(table)
    counters = {int(key.removeprefix("client")): number for key, number in session.open_cursor(COUNTERS)}
    for client, number in last.items():
        # One more was asked for and not answered.
        if counters.get(client, 0) not in (number, number + 1):
            sys.exit(f"client {client} was told of update {number}, and its row says {counters.get(client)}")
    records = 0
    for record, (key, value) in enumerate(session.open_cursor(TABLE)):
        client, number, of = HEAD.unpack_from(value)
        if key != key_of(record) or of != record or value != value_of(client, number, record):
            sys.exit(f"record {record} is damaged: {key}, {value[:40]}")
        if number > counters.get(client, 0):
            sys.exit(f"record {record} has update {number} of client {client}, whose row says {counters.get(client, 0)}")
        is_acknowledged = (client, number) in updates
        if number and not is_acknowledged and number != last.get(client, 0) + 1:
            sys.exit(f"record {record} has update {number} of client {client}, which was never asked for")
        # What is there was begun at no time known if it was not acknowledged; then it may be the last of all.
        until = updates[client, number][4] if is_acknowledged else float("inf") if number else float("-inf")
        for other in of_record.get(record, []):
            if other[3] > until:
                sys.exit(f"record {record} has update {number} of client {client}, and update {other[1]} of client {other[0]} came after it")
        records += 1
    if records != args.records:
        sys.exit(f"there are {records} records of {args.records}")
    print(json.dumps({"records": records, "acknowledged": len(updates), "clients": len(last)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "load", "check"])
    parser.add_argument("directory")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warm", type=float, default=0, help="seconds before it counts")
    parser.add_argument("--latencies", metavar="FILE")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--sync", choices=["commit", "flusher"], default="commit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records", type=int, default=20_000, help="so many when the database is made; the same ever after")
    parser.add_argument("--cache-mib", type=int, default=16, help="WiredTiger's own cache, in MiB")
    parser.add_argument("--log-mib", type=int, default=100, help="a file of the journal, in MiB")
    parser.add_argument("--checkpoint", type=float, default=2, help="seconds between two checkpoints; 60 in MongoDB")
    parser.add_argument("--acknowledged", metavar="FILE")
    parser.add_argument("--first-client", type=int, default=1, help="number of the first client, different in each run with one FILE")
    args = parser.parse_args()
    # Whoever has waited for the disk gets the interpreter back soon.
    sys.setswitchinterval(0.0002)
    connection = open_database(args)
    if args.what == "check":
        check(connection, args)
    else:
        make_records(connection, args)
    if args.what == "run":
        Load(connection, args).run()
    connection.close()


if __name__ == "__main__":
    try:
        main()
    except wiredtiger.WiredTigerError as e:
        print(f"WiredTiger: {e}", file=sys.stderr, flush=True)
        os._exit(3)
