#!/usr/bin/env bash
# A request without a body is sent as one of unknown length (seen with ureq 3.5.2 of crates.io):
#
#   1. `Agent::run` of a PUT or a POST whose body is `()` sends `transfer-encoding: chunked` and an empty chunk, and no `content-length`.
#   2. `agent.put(url).send_empty()` sends `content-length: 0`. So does `Agent::run` when the request has that header. A GET has neither.
#   3. An S3 server refuses to make an object like 1: 411 MissingContentLength (versitygw 1.8.0). It takes 2.
#
# Needs Rust 1.85 or later with cargo, python3, and for 3 Go 1.21 or later; cargo and go fetch the packages.
# Exit code 0: all is as described; 1: something has changed; 77: cannot run here.
set -euo pipefail

for program in cargo python3 go; do
    command -v "$program" >/dev/null || { echo "SKIP: $program is not installed"; exit 77; }
done

DIR=$(mktemp -d)
SERVERS=()
end() {
    ((${#SERVERS[@]} == 0)) || { kill "${SERVERS[@]}"; wait "${SERVERS[@]}"; } 2>/dev/null || true
    rm -rf "$DIR"
}
trap end EXIT
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
# listens PORT: until somebody does.
listens() {
    local i
    for ((i = 0; i < 300; i++)); do
        # shellcheck disable=SC2188
        if (</dev/tcp/127.0.0.1/"$1") 2>/dev/null; then return; fi
        sleep 0.1
    done
    echo "nobody listens" >&2
    exit 1
}

mkdir "$DIR/src"
cat >"$DIR/Cargo.toml" <<'END'
[package]
name = "asks"
version = "0.0.0"
edition = "2021"
[dependencies]
ureq = { version = "=3.5.2", default-features = false }
[workspace]
END
cat >"$DIR/src/main.rs" <<'END'
//! asks METHOD unit|length|empty URL: prints the status of the answer.
use ureq::http::Request;

fn main() {
    let [method, body, url] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else { panic!("three words") };
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let request = Request::builder().method(method.as_str()).uri(url);
    let answer = match body.as_str() {
        "unit" => agent.run(request.body(()).unwrap()),
        "length" => agent.run(request.header("content-length", "0").body(()).unwrap()),
        _ => agent.put(url).send_empty(),
    };
    let mut answer = answer.unwrap();
    let said = answer.body_mut().read_to_string().unwrap();
    let code = said.split("<Code>").nth(1).and_then(|rest| rest.split('<').next()).unwrap_or("");
    println!("{} {code}", answer.status().as_u16());
}
END
(cd "$DIR" && cargo build --quiet)
asks() { "$DIR/target/debug/asks" "$@"; }
echo "ureq $(sed -n '/^name = "ureq"$/{n;s/version = "\(.*\)"/\1/p}' "$DIR/Cargo.lock"), $(rustc --version)"

changed=0
# seen WHAT EXPECTED SHOWN
seen() {
    echo "$1: '$3'"
    [[ $2 == "$3" ]] || { echo "CHANGED: it was '$2'"; changed=1; }
}

# What comes over the wire, of one request.
cat >"$DIR/listen.py" <<'END'
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
connection, _ = listener.accept()
connection.settimeout(1)
all = b""
try:
    while some := connection.recv(65536):
        all += some
        if all.endswith(b"\r\n\r\n"):
            connection.settimeout(0.3)
except TimeoutError:
    pass
connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
head, _, body = all.decode().partition("\r\n\r\n")
framing = [line for line in head.split("\r\n") if line.startswith(("transfer-encoding", "content-length"))]
print(", ".join([*framing, f"{len(body)} bytes of body"]))
END
# framed METHOD BODY: how the request is framed.
framed() {
    local port listener
    port=$(free_port)
    python3 "$DIR/listen.py" "$port" >"$DIR/heard" &
    listener=$!
    until grep -q listens "$DIR/heard"; do sleep 0.05; done
    asks "$1" "$2" "http://127.0.0.1:$port/" >/dev/null
    wait "$listener"
    tail -n 1 "$DIR/heard"
}
seen "1. run, PUT, ()" "transfer-encoding: chunked, 5 bytes of body" "$(framed PUT unit)"
seen "1. run, POST, ()" "transfer-encoding: chunked, 5 bytes of body" "$(framed POST unit)"
seen "2. put, send_empty" "content-length: 0, 0 bytes of body" "$(framed PUT empty)"
seen "2. run, PUT, (), with the header" "content-length: 0, 0 bytes of body" "$(framed PUT length)"
seen "2. run, GET, ()" "0 bytes of body" "$(framed GET unit)"

# A real server, and addresses that are signed.
GOTOOLCHAIN=${GOTOOLCHAIN:-auto} GOBIN=$DIR go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
mkdir -p "$DIR/objects/bucket" "$DIR/beside"
port=$(free_port)
ROOT_ACCESS_KEY=key ROOT_SECRET_KEY=secret-of-key "$DIR/versitygw" --port "127.0.0.1:$port" --quiet posix --sidecar "$DIR/beside" "$DIR/objects" \
    >"$DIR/versitygw.out" 2>&1 &
SERVERS+=($!)
listens "$port"
signed() {
    python3 - "127.0.0.1:$port" "$1" <<'END'
import datetime, hashlib, hmac, sys, urllib.parse
host, path = sys.argv[1:]
time = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
scope = f"{time[:8]}/us-east-1/s3/aws4_request"
query = urllib.parse.urlencode({"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"key/{scope}", "X-Amz-Date": time, "X-Amz-Expires": "600",
    "X-Amz-SignedHeaders": "host"})
canonical = f"PUT\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
to_sign = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
mac = b"AWS4secret-of-key"
for part in *scope.split("/"), to_sign:
    mac = hmac.new(mac, part.encode(), hashlib.sha256).digest()
print(f"http://{host}{path}?{query}&X-Amz-Signature={mac.hex()}")
END
}
seen "3. an object, by run, PUT, ()" "411 MissingContentLength" "$(asks PUT unit "$(signed /bucket/unit)")"
seen "3. an object, by put, send_empty" "200 " "$(asks PUT empty "$(signed /bucket/empty)")"
seen "3. an object, by run, PUT, (), with the header" "200 " "$(asks PUT length "$(signed /bucket/length)")"
exit "$changed"
