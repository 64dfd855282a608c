//! What the integration tests cannot see: the machine between two messages.

use super::*;

struct One;

impl Catalog for One {
    fn find(&self, name: &str) -> Option<ExportDescription> {
        (name == "vol").then(|| ExportDescription {
            name: "vol".to_owned(),
            size_bytes: 4096,
            read_only: false,
            request_bytes_max: 4096,
            logical_block: 512,
            description: String::new(),
        })
    }

    fn all(&self) -> Vec<ExportDescription> {
        self.find("vol").into_iter().collect()
    }
}

/// Feeds an option as a driver would; the last step and what was sent.
fn feed(negotiation: &mut Negotiation, number: u32, data: &[u8]) -> (Step, Vec<u8>) {
    let mut bytes = Vec::new();
    OptionHeader { option: number, len: data.len() as u32 }.encode(&mut bytes);
    bytes.extend_from_slice(data);
    let (mut rest, mut sent, mut step) = (&bytes[..], Vec::new(), Step::Continue);
    while !rest.is_empty() {
        let (message, later) = rest.split_at(negotiation.needed());
        rest = later;
        step = negotiation.take(message, &One, &mut sent);
    }
    (step, sent)
}

fn begin(policy: TlsPolicy) -> Negotiation {
    let mut negotiation = Negotiation::new(policy, &mut Vec::new());
    assert_eq!(negotiation.take(&[0, 0, 0, 3], &One, &mut Vec::new()), Step::Continue);
    negotiation
}

#[test]
fn starting_tls_forgets_what_was_negotiated_in_the_clear() {
    let mut context = Vec::new();
    ContextRequest::encode("vol", &[BASE_ALLOCATION], &mut context);
    let mut go = Vec::new();
    ExportRequest::encode("vol", &[], &mut go);
    for secured in [false, true] {
        let mut negotiation = begin(TlsPolicy::Offered);
        feed(&mut negotiation, option::STRUCTURED_REPLY, &[]);
        feed(&mut negotiation, option::SET_META_CONTEXT, &context);
        if secured {
            assert_eq!(feed(&mut negotiation, option::STARTTLS, &[]).0, Step::StartTls);
            negotiation.secured();
            let (step, sent) = feed(&mut negotiation, option::STARTTLS, &[]);
            assert_eq!(step, Step::Continue, "no TLS within TLS");
            assert_eq!(
                OptionReplyHeader::decode(&sent[..OptionReplyHeader::BYTES]).unwrap().kind,
                option_reply::ERR_INVALID
            );
        }
        let (Step::Serve(choice), _) = feed(&mut negotiation, option::GO, &go) else { panic!("not served") };
        assert_eq!((choice.structured, choice.base_allocation), (!secured, !secured));
    }
}

#[test]
fn required_tls_opens_everything_once_it_is_there() {
    let mut negotiation = begin(TlsPolicy::Required);
    let (step, _) = feed(&mut negotiation, option::EXPORT_NAME, b"vol");
    assert!(matches!(step, Step::End(Ending::Refused(_))));
    let mut negotiation = begin(TlsPolicy::Required);
    assert_eq!(feed(&mut negotiation, option::STARTTLS, &[]).0, Step::StartTls);
    negotiation.secured();
    assert!(matches!(feed(&mut negotiation, option::EXPORT_NAME, b"vol").0, Step::Serve(_)));
}

#[test]
fn block_sizes_are_whole_sectors() {
    let sizes = |logical_block, max| {
        let sizes = block_sizes(logical_block, max);
        (sizes.minimum, sizes.preferred, sizes.maximum)
    };
    assert_eq!(sizes(512, 32 << 20), (512, 4096, 32 << 20));
    assert_eq!(sizes(512, 5000), (512, 4096, 4608));
    assert_eq!(sizes(512, 1024), (512, 512, 1024));
    assert_eq!(sizes(512, 0), (512, 512, 512));
    assert_eq!(sizes(512, usize::MAX), (512, 4096, u32::MAX - 511));
    assert_eq!(sizes(4096, 32 << 20), (4096, 4096, 32 << 20));
    assert_eq!(sizes(4096, 9000), (4096, 4096, 8192));
    assert_eq!(sizes(4096, 0), (4096, 4096, 4096));
}
