"""TiKV's client for Python, as it is published, against a cluster of Flotilla.

FLOTILLA_PD names the endpoints, separated by commas; FLOTILLA_SECONDS says for how long the rounds go
on. Whoever runs it may split regions and kill stores meanwhile. The client knows neither times to live
nor compare-and-swap, and API V1 alone.
"""

import os
import sys
import time

from tikv_client import RawClient

FAMILIES = ["default", "lock", "write"]


def key_of(place, round_number):
    """Key number `place` of a round: over the whole key space, but below 0xe0."""
    return bytes([place * 24]) + b"-python-%06d" % round_number


def mine_of(cf, value):
    return cf.encode() + value


def scan(client, key, value, cf):
    """Finds the row by a scan of its own range.

    The client does not look at the region error of a scan's answer, and takes it for one without rows:
    when a region has just been split, or lost its leader, it has to hear of that by another request.
    """
    for _ in range(5):
        assert client.get(key, cf=cf) == value
        rows = client.scan(key, key + b"~", 10, cf=cf)
        keys = client.scan_keys(key, key + b"~", 10, cf=cf)
        if rows and keys:
            break
    assert (rows, keys) == ([(key, value)], [key]), (key, rows, keys)


def one_round(client, number):
    keys = [key_of(place, number) for place in range(9)]
    values = [b"value of " + key for key in keys]
    for cf in FAMILIES:
        mine = [mine_of(cf, value) for value in values]
        client.put(keys[0], mine[0], cf=cf)
        assert client.get(keys[0], cf=cf) == mine[0], cf
        client.batch_put(dict(zip(keys, mine)), cf=cf)
        found = dict(client.batch_get(keys, cf=cf))
        assert found == dict(zip(keys, mine)), found
    for cf in FAMILIES:
        client.put(keys[4], mine_of(cf, values[4]), cf=cf)
        scan(client, keys[4], mine_of(cf, values[4]), cf)
        client.delete(keys[0], cf=cf)
        assert client.get(keys[0], cf=cf) is None
        client.delete_range(keys[1], keys[1] + b"~", cf=cf)
        assert client.get(keys[1], cf=cf) is None
        client.batch_delete(keys, cf=cf)
        assert client.batch_get(keys, cf=cf) == []


def main():
    client = RawClient.connect(os.environ["FLOTILLA_PD"].split(","))
    end = time.monotonic() + float(os.environ.get("FLOTILLA_SECONDS", "0"))
    rounds = 0
    while rounds == 0 or time.monotonic() < end:
        one_round(client, rounds)
        rounds += 1
    print(f"python: {rounds} rounds passed")


main()

# The client's own threads outlive the interpreter, and now and then crash the process when that ends: whatever
# has failed has raised by now.
sys.stdout.flush()
os._exit(0)
