//! Requests and their answers.

use forebay_block::{Criticality, ErrorKind, Op};
use forebay_nbd::codec::{Extent, NbdError, command, command_flag};

use crate::client::Client;
use crate::interference::Behaviour;
use crate::serve::{MIB, Serve, eventually};

fn both(serve: &Serve) -> [Client; 2] {
    [serve.client(), serve.simple_client()]
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ seed).collect()
}

#[test]
pub(crate) fn what_is_written_is_read_on_every_connection() {
    let serve = Serve::new();
    let [mut a, mut b] = both(&serve);
    for (offset, len) in [(0, 512), (512, 4096), (1536, 512), (MIB, 3 << 20), (8 * MIB - 512, 512)] {
        let data = pattern(len, len as u8);
        a.write(offset, &data, 0).unwrap();
        assert!(b.read(offset, len as u32).unwrap() == data, "{len} bytes at {offset}");
        assert!(a.read(offset, len as u32).unwrap() == data, "{len} bytes at {offset}, structured");
    }
}

#[test]
pub(crate) fn zeroes_trims_and_status_agree() {
    let serve = Serve::new();
    let mut c = serve.client();
    c.write(0, &pattern(65536, 1), 0).unwrap();
    let status =
        |c: &mut Client, flags, offset, len| c.plain(command::BLOCK_STATUS, flags, offset, len).extents;
    let extent = |len, flags| Extent { len, flags };
    assert_eq!(status(&mut c, 0, 0, 131072), [extent(65536, 0), extent(65536, 3)]);
    c.plain(command::TRIM, 0, 8192, 8192).outcome.unwrap();
    c.plain(command::WRITE_ZEROES, command_flag::NO_HOLE, 32768, 4096).outcome.unwrap();
    assert_eq!(status(&mut c, 0, 512, 65024), [extent(7680, 0), extent(8192, 3), extent(49152, 0)]);
    assert_eq!(status(&mut c, command_flag::REQ_ONE, 0, 65536), [extent(8192, 0)]);
    assert_eq!(c.read(8192, 8192).unwrap(), vec![0; 8192]);
    assert_eq!(c.read(32768, 4096).unwrap(), vec![0; 4096]);
    // The whole volume at once.
    c.plain(command::TRIM, 0, 0, 8 << 20).outcome.unwrap();
    assert_eq!(status(&mut c, 0, 0, 8 << 20), [extent(8 << 20, 3)]);
}

#[test]
pub(crate) fn flags_reach_the_volume() {
    let serve = Serve::new();
    let mut c = serve.client();
    c.write(0, &[1; 512], command_flag::FUA).unwrap();
    c.write(0, &[1; 512], 0).unwrap();
    c.plain(command::FLUSH, 0, 0, 0).outcome.unwrap();
    c.plain(command::TRIM, command_flag::FUA, 0, 512).outcome.unwrap();
    c.plain(command::WRITE_ZEROES, 0, 0, 512).outcome.unwrap();
    c.plain(command::WRITE_ZEROES, command_flag::NO_HOLE, 0, 512).outcome.unwrap();
    let seen = serve.volume.seen();
    let ops: Vec<String> = seen
        .iter()
        .map(|(op, _)| match op {
            Op::Write { fua, .. } => format!("write fua={fua}"),
            Op::Zero { unmap, fua, .. } => format!("zero unmap={unmap} fua={fua}"),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        ops,
        [
            "write fua=true",
            "write fua=false",
            "Flush",
            "zero unmap=true fua=true",
            "zero unmap=true fua=false",
            "zero unmap=false fua=false"
        ]
    );
    assert_eq!(seen.iter().map(|(_, o)| o.sync).collect::<Vec<_>>(), [true, false, true, true, false, false]);
    assert!(seen.iter().all(|(_, o)| o.pid == std::process::id() && o.criticality == Criticality::None));
}

#[test]
pub(crate) fn what_cannot_be_is_refused_and_the_connection_goes_on() {
    let serve = Serve::new();
    let end = 8 * MIB;
    for mut c in both(&serve) {
        for (what, command, flags, offset, len, error) in [
            ("unaligned offset", command::READ, 0, 1, 512, NbdError::EINVAL),
            ("unaligned length", command::READ, 0, 0, 511, NbdError::EINVAL),
            ("read past the end", command::READ, 0, end, 512, NbdError::EINVAL),
            ("read across the end of addresses", command::READ, 0, u64::MAX - 511, 512, NbdError::EINVAL),
            ("read too long", command::READ, 0, 0, (32 << 20) + 512, NbdError::EINVAL),
            ("huge read", command::READ, 0, 0, u32::MAX - 511, NbdError::EINVAL),
            ("trim past the end", command::TRIM, 0, end - 512, 1024, NbdError::EINVAL),
            ("zeroes past the end", command::WRITE_ZEROES, 0, end, 512, NbdError::ENOSPC),
            ("fast zeroes", command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 512, NbdError::ENOTSUP),
            ("wrong flag of a read", command::READ, command_flag::REQ_ONE, 0, 512, NbdError::EINVAL),
            ("unknown flag", command::TRIM, 1 << 9, 0, 512, NbdError::EINVAL),
            ("cache", command::CACHE, 0, 0, 512, NbdError::EINVAL),
            ("unknown command", 77, 0, 0, 512, NbdError::EINVAL),
            ("status of nothing", command::BLOCK_STATUS, 0, 0, 0, NbdError::EINVAL),
        ] {
            assert_eq!(c.error(command, flags, offset, len), error, "{what}");
        }
        let refused = |outcome: crate::client::Outcome| outcome.unwrap_err().0;
        assert_eq!(refused(c.write(end - 512, &[1; 1024], 0)), NbdError::ENOSPC);
        assert_eq!(refused(c.write(3, &[1; 512], 0)), NbdError::EINVAL);
        assert_eq!(refused(c.write(0, &vec![1; (32 << 20) + 512], 0)), NbdError::EINVAL);
        assert_eq!(c.read(0, 512).unwrap(), vec![0; 512]);
    }
    assert_eq!(serve.volume.seen().len(), 2, "only the two last reads reach the volume");
}

#[test]
pub(crate) fn requests_of_no_bytes_succeed() {
    let serve = Serve::new();
    for mut c in both(&serve) {
        assert_eq!(c.read(0, 0).unwrap(), Vec::<u8>::new());
        c.write(0, &[], 0).unwrap();
        c.plain(command::TRIM, 0, 512, 0).outcome.unwrap();
    }
    assert!(serve.volume.seen().is_empty());
}

#[test]
pub(crate) fn simple_replies_and_no_context_are_kept_to() {
    let serve = Serve::new();
    let mut c = serve.simple_client();
    assert!(!c.plain(command::READ, 0, 0, 512).structured);
    assert_eq!(c.error(command::READ, command_flag::DF, 0, 512), NbdError::EINVAL);
    assert_eq!(c.error(command::BLOCK_STATUS, 0, 0, 512), NbdError::EINVAL);
    let mut c = serve.client();
    assert!(c.plain(command::READ, command_flag::DF, 0, 512).structured);
}

#[test]
pub(crate) fn errors_of_the_volume_are_told() {
    let serve = Serve::new();
    for (kind, error) in [
        (ErrorKind::Io, NbdError::EIO),
        (ErrorKind::Corrupt, NbdError::EIO),
        (ErrorKind::NoSpace, NbdError::ENOSPC),
        (ErrorKind::Invalid, NbdError::EINVAL),
        (ErrorKind::Unsupported, NbdError::ENOTSUP),
        (ErrorKind::ReadOnly, NbdError::EPERM),
        (ErrorKind::Shutdown, NbdError::ESHUTDOWN),
    ] {
        serve.volume.behave(Behaviour::Fail(kind));
        for mut c in both(&serve) {
            assert_eq!(c.read(0, 512).unwrap_err().0, error);
            assert_eq!(c.write(0, &[0; 512], 0).unwrap_err().0, error);
            assert_eq!(c.error(command::FLUSH, 0, 0, 0), error);
        }
        let (_, message) = serve.client().read(0, 512).unwrap_err();
        assert!(message.contains("a test wants it so") && message.contains(kind.describe()), "{message}");
    }
}

#[test]
pub(crate) fn wrong_answers_of_the_volume_become_errors() {
    let serve = Serve::new();
    for mut c in both(&serve) {
        serve.volume.behave(Behaviour::WrongAnswer);
        assert_eq!(c.read(0, 4096).unwrap_err().0, NbdError::EIO);
        serve.volume.behave(Behaviour::Drop);
        assert_eq!(c.read(0, 4096).unwrap_err().0, NbdError::ESHUTDOWN);
        serve.volume.behave(Behaviour::Regular);
        assert_eq!(c.read(0, 4096).unwrap(), vec![0; 4096]);
    }
    serve.volume.behave(Behaviour::WrongAnswer);
    assert_eq!(serve.client().error(command::BLOCK_STATUS, 0, 0, 512), NbdError::EIO);
}

#[test]
pub(crate) fn replies_come_in_the_order_of_completion() {
    let serve = Serve::new();
    let mut c = serve.client();
    serve.volume.behave(Behaviour::Hold);
    let cookies: Vec<u64> =
        (0..8u64).map(|i| c.start(command::WRITE, 0, i * 4096, 4096, &[i as u8; 4096])).collect();
    eventually("all writes arrive", || serve.volume.held() == 8);
    serve.volume.behave(Behaviour::Regular);
    serve.volume.release();
    let answered: Vec<u64> = (0..8).map(|_| c.finish(0).cookie).collect();
    assert_eq!(answered, cookies.into_iter().rev().collect::<Vec<_>>());
}

#[test]
pub(crate) fn disconnecting_waits_for_what_is_under_way() {
    let serve = Serve::new();
    let mut c = serve.client();
    serve.volume.behave(Behaviour::Hold);
    c.start(command::WRITE, 0, 0, 512, &[9; 512]);
    c.start(command::DISC, 0, 0, 0, &[]);
    eventually("the write arrives", || serve.volume.held() == 1);
    serve.volume.behave(Behaviour::Regular);
    serve.volume.release();
    c.finish(0).outcome.unwrap();
    assert!(c.is_closed());
    assert_eq!(serve.client().read(0, 512).unwrap(), vec![9; 512]);
}

#[test]
pub(crate) fn replies_stay_whole_while_the_socket_fills_and_drains() {
    const COUNT: usize = 1000;
    let serve = Serve::new();
    let mut c = serve.client();
    let content = pattern(8 << 20, 5);
    c.write(0, &content, 0).unwrap();
    // Small replies find room where the rest of a large one has not been sent yet.
    let reads: Vec<(u64, u32)> =
        (0..COUNT as u64).map(|i| (i * 7919 % 8192 * 512, if i % 7 == 0 { 1 << 18 } else { 512 })).collect();
    let mut receiver = Client::adopt(c.stream.try_clone().unwrap());
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> Vec<u64> {
            reads.iter().map(|&(offset, len)| c.start(command::READ, 0, offset, len, &[])).collect()
        });
        let answers: Vec<_> = (0..COUNT).map(|_| receiver.finish(0)).collect();
        let cookies = sender.join().unwrap();
        for answered in answers {
            let which = cookies.iter().position(|c| *c == answered.cookie).unwrap();
            let (offset, len) = reads[which];
            let expected = &content[offset as usize..offset as usize + len as usize];
            assert!(answered.outcome.unwrap() == expected, "{len} bytes at {offset}");
        }
    });
    // The large ones exceed what a socket takes at once.
    let counts = serve.server.status().exports[0].counts;
    assert!(counts.replies_deferred > 0, "{counts:?}");
}
