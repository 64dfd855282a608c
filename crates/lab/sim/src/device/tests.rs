use super::*;
use forebay_block::{BlockNo, Seq};
use forebay_format::record::{Consistent, Extent, ExtentKind};

fn write(value: u8) -> DeviceOp {
    DeviceOp::Write { offset: 4096, bufs: vec![Buf::copy_of(&[value; 1024])], durable: true }
}

#[test]
fn the_nth_operation_fails_as_planned() {
    let mut d = Device::new(Role::Backing, 0, 64 << 10);
    let fault = Fault { role: Role::Backing, on: OpKind::Write, effect: Effect::Eio, first: 2, count: 2 };
    d.start_round(&[fault, Fault { role: Role::Cache, first: 1, ..fault }], 7);
    let outcomes: Vec<bool> = (0..5)
        .map(|n| {
            d.submit(IoId(n), write(n as u8 + 1), 0);
            d.submit(IoId(100 + n), DeviceOp::Flush, 0);
            d.complete(IoId(100 + n)).0.unwrap();
            d.complete(IoId(n)).0.is_ok()
        })
        .collect();
    assert_eq!(outcomes, [true, false, false, true, true]);
    assert_eq!(d.effects[0], 2);
    assert_eq!(d.media.read(4096, 1)[0], 5);
}

#[test]
fn lost_and_misdirected_writes_report_whom_they_harmed() {
    let mut stamped = vec![0; 1024];
    stamp::fill(&mut stamped, 40, crate::stamp::WriteNo(3));
    for effect in [Effect::Lost, Effect::Misdirected] {
        let mut d = Device::new(Role::Cache, 1 << 20, 64 << 10);
        let fault = Fault { role: Role::Cache, on: OpKind::Write, effect, first: 1, count: 1 };
        d.start_round(&[fault], 7);
        let op = DeviceOp::Write { offset: 1 << 20, bufs: vec![Buf::copy_of(&stamped)], durable: true };
        d.submit(IoId(1), op, 0);
        let (result, harm) = d.complete(IoId(1));
        assert!(result.unwrap().is_none());
        assert_eq!(harm.sectors[..2], [40, 41]);
        assert_eq!(harm.structure, effect == Effect::Misdirected);
    }
}

#[test]
fn a_latent_error_is_mended_by_a_write() {
    let mut d = Device::new(Role::Backing, 0, 64 << 10);
    d.start_round(&[], 7);
    d.unreadable.push(9);
    let read = DeviceOp::Read { offset: 4096, len: 1024 };
    d.submit(IoId(1), read.clone(), 0);
    assert_eq!(d.complete(IoId(1)).0.unwrap_err().kind, ErrorKind::Io);
    d.submit(IoId(2), write(1), 0);
    d.complete(IoId(2)).0.unwrap();
    d.submit(IoId(3), read, 0);
    assert_eq!(d.complete(IoId(3)).0.unwrap().unwrap()[0], 1);
}

#[test]
fn a_forged_record_harms_no_sector_beyond_the_volume() {
    let layout = Layout {
        cache_id: [1; 16],
        generation: 1,
        align: 512,
        segment_bytes: Layout::SEGMENT_BYTES_MIN,
        segment_count: 6,
    };
    let record = RecordHeader {
        generation: 1,
        segment_seq: 1,
        seq: Seq(2),
        offset: 512,
        durable_upto: Seq(1),
        clean_upto: Seq(1),
        tail: 1,
        time_ns: 0,
        clean_stop: false,
        ordered: Consistent::No,
        distance: 1,
        extents: vec![Extent { block: BlockNo(2), count: 1 << 10, kind: ExtentKind::Zero }],
        checksums: Vec::new(),
    };
    let mut bytes = vec![0; record.header_bytes(layout.align)];
    record.encode(&layout, &mut bytes);
    let mut d = Device::new(Role::Cache, Layout::SEGMENTS_OFFSET, 1 << 16);
    d.volume_bytes = 4 * BLOCK_BYTES;
    d.layout = Some(layout);
    d.start_round(
        &[Fault { role: Role::Cache, on: OpKind::Write, effect: Effect::Lost, first: 1, count: 1 }],
        7,
    );
    let offset = Layout::SEGMENTS_OFFSET + u64::from(record.offset);
    d.submit(IoId(1), DeviceOp::Write { offset, bufs: vec![Buf::copy_of(&bytes)], durable: true }, 0);
    let harm = d.complete(IoId(1)).1;
    assert_eq!(harm.sectors, [16, 24]);
}
