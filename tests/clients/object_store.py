#!/usr/bin/env python3
"""Speaks to an S3 server, with the address and the keys of the environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY).

object_store.py make-bucket BUCKET        object_store.py list BUCKET [PREFIX]        object_store.py races BUCKET TIMES
object_store.py empty BUCKET [PREFIX]     object_store.py remove-bucket BUCKET        object_store.py get BUCKET KEY
object_store.py put BUCKET KEY <BYTES     object_store.py set-policy BUCKET <JSON     object_store.py remove-policy BUCKET
object_store.py delete BUCKET KEY

`list` prints size and name of each object. `races` lets eight clients create one object at a time, and ends with 1 unless each time
exactly one is told that it did, and the object is that one's.
"""
import concurrent.futures
import datetime
import hashlib
import hmac
import http.client
import os
import sys
import urllib.parse
import xml.etree.ElementTree


def quoted(text, safe="-_.~"):
    return urllib.parse.quote(text, safe=safe)


def ask(method, path, query=(), body=b"", **headers):
    """Status and body of the answer to one signed request."""
    endpoint = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    region = os.environ.get("AWS_REGION", "us-east-1")
    time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers |= {"host": endpoint.netloc, "x-amz-date": time, "x-amz-content-sha256": digest}
    names = sorted(headers)
    path = "/" + quoted(path, "/-_.~")
    query = "&".join(f"{quoted(name)}={quoted(value)}" for name, value in sorted(query))
    signed = ";".join(names)
    lines = [method, path, query, *(f"{name}:{headers[name]}" for name in names), "", signed, digest]
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    canonical = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{canonical}"
    mac = ("AWS4" + secret).encode()
    for part in [*scope.split("/"), to_sign]:
        mac = hmac.new(mac, part.encode(), hashlib.sha256).digest()
    headers["authorization"] = f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={signed}, Signature={mac.hex()}"
    connection = http.client.HTTPConnection(endpoint.hostname, endpoint.port, timeout=30)
    try:
        connection.request(method, f"{path}?{query}" if query else path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def must(method, *rest, **headers):
    status, body = ask(method, *rest, **headers)
    if status >= 300:
        sys.exit(f"object_store.py: {method} {rest[0]}: {status}: {body[:300].decode(errors='replace')}")
    return body


def listing(bucket, prefix=""):
    query = {"list-type": "2", "prefix": prefix}
    while True:
        page = xml.etree.ElementTree.fromstring(must("GET", bucket, query.items()))
        space = page.tag.removesuffix("ListBucketResult")
        for one in page.iter(space + "Contents"):
            yield one.findtext(space + "Key"), int(one.findtext(space + "Size"))
        query["continuation-token"] = page.findtext(space + "NextContinuationToken")
        if not query["continuation-token"]:
            return


def races(bucket, times):
    """Whether the creation of an object that there is not has one winner."""
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        for time in range(times):
            name = f"{bucket}/race-{time}"
            contents = [f"{time} of {client} ".encode() * 1000 for client in range(8)]
            create = lambda content: ask("PUT", name, (), content, if_none_match="*")[0]
            told = list(clients.map(create, contents))
            winners = [content for content, status in zip(contents, told) if status < 300]
            if len(winners) != 1 or must("GET", name) != winners[0]:
                sys.exit(f"object_store.py: of eight that create one object, these are told: {told}")
            must("DELETE", name)


def main(action, bucket, *rest):
    if action == "make-bucket":
        must("PUT", bucket)
    elif action == "remove-bucket":
        must("DELETE", bucket)
    elif action == "list":
        for name, size in listing(bucket, *rest):
            print(size, name)
    elif action == "empty":
        for name, _ in list(listing(bucket, *rest)):
            must("DELETE", f"{bucket}/{name}")
    elif action == "get":
        sys.stdout.buffer.write(must("GET", f"{bucket}/{rest[0]}"))
    elif action == "delete":
        must("DELETE", f"{bucket}/{rest[0]}")
    elif action == "put":
        must("PUT", f"{bucket}/{rest[0]}", (), sys.stdin.buffer.read())
    elif action == "set-policy":
        must("PUT", bucket, [("policy", "")], sys.stdin.buffer.read())
    elif action == "remove-policy":
        must("DELETE", bucket, [("policy", "")])
    elif action == "races":
        races(bucket, int(rest[0]))
    else:
        sys.exit(__doc__)


main(*sys.argv[1:])
