//! What a memory volume does not show: unusual answers of a volume.

use super::*;

const SESSION: Session = Session {
    size_bytes: 1 << 30,
    read_only: false,
    request_bytes_max: 1 << 20,
    structured: true,
    base_allocation: true,
};

fn told(flags: u16, len: u32, extents: &[(u64, Allocation)]) -> Option<Vec<(u32, u32)>> {
    let request = Request { flags, command: command::BLOCK_STATUS, cookie: 7, offset: 0, len };
    let extents = extents.iter().map(|&(len, allocation)| StatusExtent { len, allocation }).collect();
    let (head, data, is_error) = SESSION.reply(&request, Ok(Reply::Status(extents)));
    assert!(data.is_none());
    let payload = &head[ChunkHeader::BYTES..];
    match ChunkPayload::decode(if is_error { chunk::ERROR } else { chunk::BLOCK_STATUS }, payload).unwrap() {
        ChunkPayload::Status { id, extents } => {
            assert_eq!(id, BASE_ALLOCATION_ID);
            Some(ChunkPayload::extents(extents).map(|e| (e.len, e.flags)).collect())
        }
        ChunkPayload::Error { error: NbdError::EIO, .. } => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn status_is_merged_and_kept_within_the_range() {
    use Allocation::{Data, Hole};
    let extents = [(512, Data), (512, Data), (0, Hole), (512, Data), (1024, Hole), (u64::MAX, Data)];
    assert_eq!(told(0, 8192, &extents), Some(vec![(1536, 0), (1024, 3), (5632, 0)]));
    assert_eq!(told(command_flag::REQ_ONE, 8192, &extents), Some(vec![(1536, 0)]));
    assert_eq!(told(0, 1024, &extents), Some(vec![(1024, 0)]));
    assert_eq!(told(0, u32::MAX - 511, &[(1 << 40, Hole)]), Some(vec![(u32::MAX - 511, 3)]));
    assert_eq!(told(0, 512, &[]), None, "a volume that says nothing");
    assert_eq!(told(0, 512, &[(0, Data)]), None);
}

#[test]
fn a_status_reply_has_a_limit() {
    let alternating: Vec<_> =
        (0..10_000).map(|i| (512, if i % 2 == 0 { Allocation::Data } else { Allocation::Hole })).collect();
    assert_eq!(told(0, 10_000 * 512, &alternating).unwrap().len(), STATUS_EXTENTS_MAX);
}

#[test]
fn commands_become_operations() {
    let judge = |command, flags, len| {
        let request = Request { flags, command, cookie: 0, offset: 4096, len };
        format!("{:?}", SESSION.judge(&request))
    };
    assert_eq!(judge(command::READ, 0, 512), "Submit(Read { offset: 4096, len: 512 })");
    assert_eq!(judge(command::WRITE, command_flag::FUA, 512), "Write { fua: true }");
    assert_eq!(
        judge(command::TRIM, 0, 1 << 29),
        "Submit(Zero { offset: 4096, len: 536870912, unmap: true, fua: false })"
    );
    // The protocol allows FUA with every command, and wants it ignored where it means nothing.
    assert_eq!(judge(command::READ, command_flag::FUA, 512), "Submit(Read { offset: 4096, len: 512 })");
    assert_eq!(judge(command::FLUSH, command_flag::FUA, 0), "Submit(Flush)");
    assert_eq!(
        judge(command::BLOCK_STATUS, 0, 1 << 30),
        format!(
            "Refuse({:?})",
            Refusal { error: NbdError::EINVAL, reason: "request reaches past the end of the volume" }
        )
    );
    let wanted = |most| format!("Submit(Status {{ offset: 4096, len: 512, extents_max: {most} }})");
    assert_eq!(judge(command::BLOCK_STATUS, 0, 512), wanted(STATUS_EXTENTS_MAX));
    assert_eq!(judge(command::BLOCK_STATUS, command_flag::REQ_ONE, 512), wanted(1));
    assert_eq!(judge(command::DISC, 0xffff, 1), "Disconnect");
    assert!(judge(command::READ, 0, (1 << 20) + 512).starts_with("Refuse"));
}
