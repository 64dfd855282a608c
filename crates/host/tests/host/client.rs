//! A client that waits for each of its requests.

use std::sync::mpsc;

use forebay_block::{BlockService, Buf, IoError, Op, Origin, Reply, StatusExtent};
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
        match self.run(Op::Status { offset, len }).unwrap() {
            Reply::Status(extents) => extents,
            other => panic!("a question about allocation was answered with {other:?}"),
        }
    }

    fn done(&self, op: Op) -> Result<(), IoError> {
        match self.run(op)? {
            Reply::Done => Ok(()),
            other => panic!("answered with {other:?}"),
        }
    }
}
