"""What a client of a database was told is done: a journal, on a file that is not on the volume under test.

Each of several clients numbers what it does 1, 2, 3 ...; the journal gets a line for each acknowledged one.
"""

import os
import threading


def acknowledged(journal):
    """The newest acknowledged number of each client."""
    newest = {}
    if os.path.exists(journal):
        with open(journal) as lines:
            for line in lines:
                client, seq = map(int, line.split())
                newest[client] = max(seq, newest.get(client, 0))
    return newest


def write(journal, clients, work):
    """Runs `work(client, done)` for each client at the same time, where `done(seq)` notes an acknowledged number. Says when
    they have begun, and how many were acknowledged in all."""
    file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    counts = [0] * clients

    def run(client):
        def done(seq):
            os.write(file, f"{client} {seq}\n".encode())
            counts[client] += 1

        work(client, done)

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    print("writing", flush=True)
    for thread in threads:
        thread.join()
    print(sum(counts))
