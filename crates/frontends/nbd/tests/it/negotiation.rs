//! Options and their answers.

use std::sync::Arc;

use forebay_block::VolumeInfo;
use forebay_nbd::codec::{
    BASE_ALLOCATION, BlockSizes, ContextReply, ContextRequest, ExportReply, ExportRequest, Info, NbdError,
    command, export_flag, handshake_flag, info, option, option_reply,
};
use forebay_nbd::{Export, Limits, NbdServer, ServerConfig};
use tempfile::TempDir;

use crate::client::{Answers, Client};
use crate::memory::{MemoryVolume, Workers};
use crate::serve::{MIB, Serve};

/// A server of two volumes, of which the second is read-only and described.
fn two() -> (NbdServer, TempDir) {
    let directory = TempDir::new().unwrap();
    let one = MemoryVolume::new("one", MIB, Workers::Inline);
    let info = VolumeInfo {
        name: "two".into(),
        size_bytes: 2 * MIB,
        read_only: true,
        request_bytes_max: 1 << 20,
        logical_block: 4096,
    };
    let mut two = Export::new(Arc::new(MemoryVolume::with_info(info, Workers::Inline)));
    two.description = "the second".into();
    let server = NbdServer::start(ServerConfig {
        listen: vec![format!("unix:{}/nbd.sock", directory.path().display()).parse().unwrap()],
        exports: vec![two, Export::new(Arc::new(one))],
        tls: None,
        socket: Default::default(),
        limits: Limits::default(),
        memory: Arc::default(),
    })
    .unwrap();
    (server, directory)
}

fn connect(directory: &TempDir) -> Client {
    Client::connect(&directory.path().join("nbd.sock"))
}

fn about(client: &mut Client, number: u32, export: &str, kinds: &[u16]) -> Answers {
    let mut data = Vec::new();
    ExportRequest::encode(export, kinds, &mut data);
    client.option(number, &data)
}

fn infos(answers: &Answers) -> Vec<Info<'_>> {
    let found = answers.iter().filter(|(kind, _)| *kind == option_reply::INFO);
    found.map(|(_, payload)| Info::decode(payload).unwrap().unwrap()).collect()
}

#[test]
fn exports_are_listed_and_found_by_name_only() {
    let (_server, directory) = two();
    let mut c = connect(&directory);
    assert_eq!(c.list(), ["one", "two"]);
    assert_eq!(c.go(""), Err(option_reply::ERR_UNKNOWN), "two volumes have no default");
    assert_eq!(c.go("three"), Err(option_reply::ERR_UNKNOWN));
    assert_eq!(c.go("two").unwrap().0, 2 * MIB);
    assert_eq!(c.write(0, &[1; 512], 0).unwrap_err().0, NbdError::EPERM);
    assert_eq!(c.error(command::TRIM, 0, 0, 512), NbdError::EPERM);
    assert_eq!(c.error(command::WRITE_ZEROES, 0, 0, 512), NbdError::EPERM);
    assert_eq!(c.read(0, 512).unwrap(), vec![0; 512]);
}

#[test]
fn the_only_volume_is_the_default() {
    let serve = Serve::new();
    let mut c = serve.connect();
    assert_eq!(c.greeting.flags, handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    let answers = about(&mut c, option::INFO, "", &[info::NAME]);
    assert!(infos(&answers).contains(&Info::Name("vol")), "the default's canonical name");
    assert_eq!(c.go("").unwrap().0, 8 * MIB);
    assert_eq!(c.read(0, 512).unwrap(), vec![0; 512]);
}

#[test]
fn info_tells_everything_asked_for_and_the_block_sizes() {
    let (_server, directory) = two();
    let mut c = connect(&directory);
    assert_eq!(c.verdict(option::STRUCTURED_REPLY, &[]), option_reply::ACK);
    let answers = about(&mut c, option::INFO, "two", &[info::NAME, info::DESCRIPTION, 999]);
    let flags = export_flag::HAS_FLAGS
        | export_flag::READ_ONLY
        | export_flag::SEND_FLUSH
        | export_flag::SEND_FUA
        | export_flag::SEND_TRIM
        | export_flag::SEND_WRITE_ZEROES
        | export_flag::SEND_DF
        | export_flag::CAN_MULTI_CONN
        | export_flag::SEND_FAST_ZERO;
    assert_eq!(
        infos(&answers),
        [
            Info::Export { size: 2 * MIB, flags },
            Info::Name("two"),
            Info::Description("the second"),
            Info::BlockSize(BlockSizes { minimum: 4096, preferred: 4096, maximum: 1 << 20 }),
        ]
    );
    let answers = about(&mut c, option::GO, "one", &[]);
    let sizes = BlockSizes { minimum: 512, preferred: 4096, maximum: 32 << 20 };
    assert_eq!(infos(&answers)[1..], [Info::BlockSize(sizes)]);
    assert_eq!(answers.last().unwrap().0, option_reply::ACK);
    assert_eq!(c.read(0, 512).unwrap(), vec![0; 512]);
}

#[test]
fn export_name_starts_transmission_or_closes() {
    let serve = Serve::new();
    for (flags, zeroes) in [(1, ExportReply::ZEROES), (3, 0)] {
        let mut c = Client::connect_with(&serve.socket(), flags);
        c.send_option(option::EXPORT_NAME, b"vol");
        let reply = ExportReply::decode(&c.receive(ExportReply::BYTES)).unwrap();
        assert_eq!(reply.size, 8 * MIB);
        assert!(reply.flags & export_flag::SEND_DF == 0, "no structured replies, no fragments");
        assert_eq!(c.receive(zeroes), vec![0; zeroes]);
        assert_eq!(c.read(0, 512).unwrap(), vec![0; 512]);
    }
    for name in [&b"nothing"[..], b"\xff\xfe"] {
        let mut c = serve.connect();
        c.send_option(option::EXPORT_NAME, name);
        assert!(c.is_closed());
    }
}

#[test]
fn what_the_server_does_not_know_is_refused_and_skipped() {
    let serve = Serve::new();
    let mut c = serve.connect();
    for (what, number, data, kind) in [
        ("unknown option", 77, &b"data"[..], option_reply::ERR_UNSUP),
        ("extended headers", 11, b"", option_reply::ERR_UNSUP),
        ("list with data", option::LIST, b"x", option_reply::ERR_INVALID),
        ("structured with data", option::STRUCTURED_REPLY, b"x", option_reply::ERR_INVALID),
        ("go without data", option::GO, b"", option_reply::ERR_INVALID),
        ("go with a name that lies", option::GO, b"\xff\xff\xff\xffvol\0\0", option_reply::ERR_INVALID),
        ("go with trailing bytes", option::GO, b"\0\0\0\x03vol\0\0!", option_reply::ERR_INVALID),
        ("go with a name that is no text", option::GO, b"\0\0\0\x01\xff\0\0", option_reply::ERR_INVALID),
        ("starttls", option::STARTTLS, b"", option_reply::ERR_POLICY),
        ("too long", 77, &[0; 70_000], option_reply::ERR_TOO_BIG),
        ("name too long", option::GO, &long_name(), option_reply::ERR_INVALID),
    ] {
        assert_eq!(c.verdict(number, data), kind, "{what}");
    }
    assert_eq!(c.list(), ["vol"], "the negotiation goes on");
}

/// A request for an export whose name has more bytes than the protocol allows.
fn long_name() -> Vec<u8> {
    let mut data = Vec::new();
    ExportRequest::encode(&"n".repeat(4097), &[], &mut data);
    data
}

#[test]
fn abort_is_acknowledged() {
    let serve = Serve::new();
    let mut c = serve.connect();
    assert_eq!(c.verdict(option::ABORT, &[]), option_reply::ACK);
    assert!(c.is_closed());
}

#[test]
fn contexts_are_listed() {
    let serve = Serve::new();
    let mut c = serve.connect();
    for (queries, listed) in
        [(&[][..], true), (&["base:"], true), (&["x:y", BASE_ALLOCATION], true), (&["x:"], false)]
    {
        let mut data = Vec::new();
        ContextRequest::encode("vol", queries, &mut data);
        let answers = c.option(option::LIST_META_CONTEXT, &data);
        assert_eq!(answers.len(), 1 + usize::from(listed), "{queries:?}");
        if listed {
            assert_eq!(ContextReply::decode(&answers[0].1).unwrap().name, BASE_ALLOCATION);
        }
    }
    let mut data = Vec::new();
    ContextRequest::encode("nothing", &[], &mut data);
    assert_eq!(c.verdict(option::LIST_META_CONTEXT, &data), option_reply::ERR_UNKNOWN);
    assert_eq!(c.verdict(option::LIST_META_CONTEXT, &[0, 0, 0, 9]), option_reply::ERR_INVALID);
}

#[test]
fn a_context_holds_for_its_export_and_until_a_later_choice() {
    let (_server, directory) = two();
    let last = |answers: Answers| answers.last().unwrap().0;
    let status_works = |c: &mut Client| c.plain(command::BLOCK_STATUS, 0, 0, 512).outcome.is_ok();

    let mut c = connect(&directory);
    let answers = c.set_context("one", &[BASE_ALLOCATION]);
    assert_eq!(last(answers), option_reply::ERR_INVALID, "structured replies come first");
    c.verdict(option::STRUCTURED_REPLY, &[]);
    assert_eq!(c.set_context("one", &[BASE_ALLOCATION]).len(), 2);
    c.go("one").unwrap();
    assert!(status_works(&mut c));

    let mut c = connect(&directory);
    c.verdict(option::STRUCTURED_REPLY, &[]);
    assert_eq!(c.set_context("one", &[BASE_ALLOCATION]).len(), 2);
    c.go("two").unwrap();
    assert!(!status_works(&mut c), "chosen for another export");

    for later in [&["base:"][..], &[], &["x:y"]] {
        let mut c = connect(&directory);
        c.verdict(option::STRUCTURED_REPLY, &[]);
        assert_eq!(c.set_context("one", &[BASE_ALLOCATION]).len(), 2);
        assert_eq!(c.set_context("one", later).len(), 1);
        c.go("one").unwrap();
        assert!(!status_works(&mut c), "{later:?} chooses nothing");
    }

    let mut c = connect(&directory);
    c.verdict(option::STRUCTURED_REPLY, &[]);
    c.set_context("one", &[BASE_ALLOCATION]);
    assert_eq!(last(c.set_context("nothing", &[BASE_ALLOCATION])), option_reply::ERR_UNKNOWN);
    c.go("one").unwrap();
    assert!(!status_works(&mut c), "a failed choice leaves none");
}
