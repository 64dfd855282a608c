//! A client that waits for each of its requests.

use std::sync::mpsc;

use forebay_block::{BlockService, Buf, IoError, Op, Origin, Reply, STATUS_EXTENTS_MAX, StatusExtent};
use forebay_host::VolumeHandle;

pub struct Client(pub VolumeHandle);

impl Client {
    pub fn run(&self, op: Op) -> Result<Reply, IoError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let done = Box::new(move |result| sender.send(result).unwrap());
        self.0.submit(op, Origin::default(), done);
        receiver.recv().unwrap()
    }

    pub fn read(&self, offset: u64, len: usize) -> Result<Buf, IoError> {
        match self.run(Op::Read { offset, len })? {
            Reply::Data(data) => {
                assert_eq!(data.len(), len);
                Ok(data)
            }
            other => panic!("a read was answered with {other:?}"),
        }
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        self.done(Op::Write { offset, data: Buf::copy_of(data), fua: false })
    }

    pub fn zero(&self, offset: u64, len: u64, unmap: bool) -> Result<(), IoError> {
        self.done(Op::Zero { offset, len, unmap, fua: true })
    }

    pub fn flush(&self) -> Result<(), IoError> {
        self.done(Op::Flush)
    }

    pub fn status(&self, offset: u64, len: u64) -> Vec<StatusExtent> {
        // Answers may be short.
        let (mut all, mut at): (Vec<StatusExtent>, _) = (Vec::new(), offset);
        while at < offset + len {
            let op = Op::Status { offset: at, len: offset + len - at, extents_max: STATUS_EXTENTS_MAX };
            let Reply::Status(extents) = self.run(op).unwrap() else { panic!("no answer about allocation") };
            assert!(!extents.is_empty());
            for extent in extents {
                at += extent.len;
                match all.last_mut() {
                    Some(last) if last.allocation == extent.allocation => last.len += extent.len,
                    _ => all.push(extent),
                }
            }
        }
        assert_eq!(at, offset + len);
        all
    }

    fn done(&self, op: Op) -> Result<(), IoError> {
        match self.run(op)? {
            Reply::Done => Ok(()),
            other => panic!("answered with {other:?}"),
        }
    }
}
