//! Arbitrary bytes meet every decoder: nothing panics, and answers stay in proportion to what was sent.

use std::path::PathBuf;

use forebay_nbd::Address;
use forebay_nbd::codec::{
    BASE_ALLOCATION, BlockSizes, ChunkHeader, ChunkPayload, ClientFlags, ContextRequest, ExportRequest,
    Extent, Greeting, Info, NbdError, OptionHeader, OptionReplyHeader, ReplyHeader, Request, SimpleReply,
};
use forebay_nbd::fuzzing;
use forebay_nbd::negotiation::{OPTION_BYTES_MAX, TlsPolicy};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Bytes that are likely to get past the magic numbers: whole options and requests among noise.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let option =
        (0u32..14, any::<u8>(), prop::collection::vec(any::<u8>(), 0..80)).prop_map(|(option, lie, data)| {
            let mut bytes = Vec::new();
            let len = if lie == 0 { u32::MAX } else { data.len() as u32 };
            OptionHeader { option, len }.encode(&mut bytes);
            bytes.extend(data);
            bytes
        });
    let go = ("[a-z]{0,8}", prop::collection::vec(any::<u16>(), 0..5)).prop_map(|(name, kinds)| {
        let mut data = Vec::new();
        ExportRequest::encode(&name, &kinds, &mut data);
        let mut bytes = Vec::new();
        OptionHeader { option: 6, len: data.len() as u32 }.encode(&mut bytes);
        bytes.extend(data);
        bytes
    });
    prop::collection::vec(prop_oneof![option, go], 0..12).prop_map(|options| {
        let mut bytes = Vec::new();
        ClientFlags(3).encode(&mut bytes);
        bytes.extend(options.concat());
        bytes
    })
}

/// Conversations that a real client has, to start fuzzing from.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let collect = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        encode(&mut out);
        out
    };
    let option = |number: u32, data: Vec<u8>| {
        let header = OptionHeader { option: number, len: data.len() as u32 };
        [collect(&|o| header.encode(o)), data].concat()
    };
    let go = collect(&|o| ExportRequest::encode("volume", &[1, 2, 3], o));
    let context = collect(&|o| ContextRequest::encode("volume", &[BASE_ALLOCATION, "base:"], o));
    let request = |command, flags, len| {
        collect(&|o| Request { flags, command, cookie: 7, offset: 4096, len }.encode(o))
    };
    let chunk = |kind, payload: Vec<u8>| {
        let header = ChunkHeader { flags: 1, kind, cookie: 7, len: payload.len() as u32 };
        [collect(&|o| header.encode(o)), payload].concat()
    };
    match target {
        "nbd_negotiation" => (0..3u8)
            .map(|policy| {
                let flags = collect(&|o| ClientFlags(3).encode(o));
                let options =
                    [(5, vec![]), (8, vec![]), (3, vec![]), (9, context.clone()), (10, context.clone())];
                let options = options.into_iter().chain([(77, vec![1]), (6, go.clone()), (7, go.clone())]);
                let options: Vec<u8> = options.flat_map(|(number, data)| option(number, data)).collect();
                [vec![policy], flags, options].concat()
            })
            .collect(),
        "nbd_requests" => vec![(0..9).flat_map(|c| request(c, c % 3, 8192)).collect()],
        "nbd_replies" => vec![
            collect(&|o| Greeting { flags: 3 }.encode(o)),
            collect(&|o| OptionReplyHeader { option: 7, kind: 3, len: 12 }.encode(o)),
            collect(&|o| {
                Info::BlockSize(BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 25 }).encode(o)
            }),
            collect(&|o| SimpleReply { error: NbdError::EIO, cookie: 7 }.encode(o)),
            chunk(0x8001, collect(&|o| ChunkPayload::encode_error(NbdError::EIO, "message", o))),
            chunk(5, collect(&|o| ChunkPayload::encode_status(1, &[Extent { len: 512, flags: 3 }; 2], o))),
            [
                vec![0, 5],
                collect(&|o| ChunkPayload::encode_status(1, &[Extent { len: 512, flags: 0 }; 3], o)),
            ]
            .concat(),
        ],
        _ => vec![go, context, option(7, vec![])],
    }
}

/// The seeds of a target's corpus. `FOREBAY_FUZZ_SEEDS=write` writes missing ones; it never overwrites one.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
    if std::env::var_os("FOREBAY_FUZZ_SEEDS").is_some_and(|v| v == "write") {
        std::fs::create_dir_all(&directory).unwrap();
        for (i, seed) in seeds(target).iter().enumerate() {
            let file = directory.join(format!("seed-{i:02}"));
            if !file.exists() {
                std::fs::write(file, seed).unwrap();
            }
        }
    }
    let files = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    files.iter().map(|f| std::fs::read(f).unwrap()).collect()
}

#[test]
fn seeds_and_their_mutations_are_borne() {
    for (target, entry) in fuzzing::TARGETS {
        let corpus = corpus(target);
        corpus.iter().for_each(|seed| entry(seed));
        let change = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
        let config = ProptestConfig {
            rng_seed: RngSeed::Fixed(0x6e62_6422),
            failure_persistence: None,
            ..ProptestConfig::with_cases(2000)
        };
        proptest!(config, |(seed in any::<prop::sample::Index>(), changes in change)| {
            let mut bytes = seed.get(&corpus).clone();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            entry(&bytes);
        });
    }
}

proptest! {
    // The same cases in each run, so that a failure seen once is seen again.
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x6e62_6421), cases: 1024, ..ProptestConfig::default() })]

    #[test]
    fn noise_is_borne(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for (_, entry) in fuzzing::TARGETS {
            entry(&bytes);
        }
        let _ = String::from_utf8_lossy(&bytes).parse::<Address>();
    }

    #[test]
    fn a_negotiation_answers_in_proportion(bytes in conversation(), secure in any::<bool>()) {
        let policy = if secure { TlsPolicy::Required } else { TlsPolicy::Offered };
        let sent = fuzzing::negotiation(policy, &bytes);
        // The longest answer (INFO with all its parts) to the shortest option (16 bytes).
        prop_assert!(sent.len() <= Greeting::BYTES + 200 * (bytes.len() / 16 + 1), "{} for {}", sent.len(), bytes.len());
    }

    #[test]
    fn messages_survive_a_round_trip(a in any::<u16>(), b in any::<u16>(), c in any::<u64>(), d in any::<u64>(), e in any::<u32>()) {
        let bytes = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            encode(&mut out);
            out
        };
        let request = Request { flags: a, command: b, cookie: c, offset: d, len: e };
        prop_assert_eq!(Request::decode(&bytes(&|o| request.encode(o))), Ok(request));
        let chunk = ChunkHeader { flags: a, kind: b, cookie: c, len: e };
        prop_assert_eq!(ReplyHeader::decode(&bytes(&|o| chunk.encode(o))), Ok(ReplyHeader::Chunk(chunk)));
        let simple = SimpleReply { error: NbdError(e), cookie: c };
        prop_assert_eq!(ReplyHeader::decode(&bytes(&|o| simple.encode(o))), Ok(ReplyHeader::Simple(simple)));
        let option = OptionHeader { option: e, len: u32::from(a) };
        prop_assert_eq!(OptionHeader::decode(&bytes(&|o| option.encode(o))), Ok(option));
        let reply = OptionReplyHeader { option: e, kind: u32::from(a), len: u32::from(b) };
        prop_assert_eq!(OptionReplyHeader::decode(&bytes(&|o| reply.encode(o))), Ok(reply));
        let greeting = Greeting { flags: a };
        prop_assert_eq!(Greeting::decode(&bytes(&|o| greeting.encode(o))), Ok(greeting));
    }

    #[test]
    fn context_requests_survive_a_round_trip(name in "\\PC{0,20}", queries in prop::collection::vec("\\PC{0,20}", 0..6)) {
        let mut bytes = Vec::new();
        let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
        ContextRequest::encode(&name, &queries, &mut bytes);
        let decoded = ContextRequest::decode(&bytes).unwrap();
        prop_assert_eq!(decoded.export, name.as_str());
        prop_assert_eq!(decoded.queries().collect::<Vec<_>>(), queries);
        prop_assert!(ContextRequest::decode(&bytes[..bytes.len() - 1]).is_err());
    }
}

#[test]
fn a_negotiation_never_wants_more_than_the_limit() {
    // The driver reserves what is needed: whatever lengths a client claims, that is bounded.
    for len in [1, 16, OPTION_BYTES_MAX, OPTION_BYTES_MAX + 1, 1 << 20, (1 << 20) + 1, u32::MAX as usize] {
        let mut sent = Vec::new();
        let mut negotiation = forebay_nbd::negotiation::Negotiation::new(TlsPolicy::Off, &mut sent);
        let mut bytes = Vec::new();
        ClientFlags(3).encode(&mut bytes);
        OptionHeader { option: 7, len: len as u32 }.encode(&mut bytes);
        let mut rest = &bytes[..];
        while let Some((message, later)) = rest.split_at_checked(negotiation.needed()) {
            rest = later;
            negotiation.take(message, &NoExports, &mut sent);
        }
        assert!(negotiation.needed() <= OPTION_BYTES_MAX);
    }
}

struct NoExports;

impl forebay_nbd::Catalog for NoExports {
    fn find(&self, _: &str) -> Option<forebay_nbd::ExportDescription> {
        None
    }

    fn all(&self) -> Vec<forebay_nbd::ExportDescription> {
        Vec::new()
    }
}
