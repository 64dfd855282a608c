//! Who knows more of writes than the frontends do is asked in time, and told.

use std::sync::{Arc, Mutex, mpsc};

use forebay_block::{BlockService, Buf, Completion, Op, Origin};
use forebay_host::{Ending, Observer};
use forebay_policy::AdmissionReason;

use crate::place::{MIB, Place};

/// Says of every request that task 7 has issued it.
#[derive(Default)]
struct Knowing(Arc<Mutex<Vec<String>>>);

impl Observer for Knowing {
    fn identify(&self, op: &Op, origin: Origin, done: Completion) -> (Origin, Completion) {
        self.0.lock().unwrap().push(format!("asked about {op:?} of {}", origin.pid));
        let told = Arc::clone(&self.0);
        let done = Box::new(move |result| {
            told.lock().unwrap().push("over".to_owned());
            done(result);
        });
        (Origin { pid: 7, ..origin }, done)
    }

    fn admitted(&self, origin: &Origin, _reason: AdmissionReason, bytes: u64) {
        let kind = if origin.sync { "sync" } else { "async" };
        self.0.lock().unwrap().push(format!("{bytes} {kind} bytes of {}", origin.pid));
    }
}

#[test]
fn of_requests_without_an_issuer_the_observer_is_asked() {
    let place = Place::formatted(8 * MIB, 8 * MIB);
    let volume = place.open();
    let handle = volume.handle();
    let knowing = Knowing::default();
    let told = Arc::clone(&knowing.0);
    handle.observe(Arc::new(knowing));
    // A second one does not count.
    handle.observe(Arc::new(Knowing::default()));
    let wait = |submit: &dyn Fn(Completion)| {
        let (sender, receiver) = mpsc::sync_channel(1);
        submit(Box::new(move |result| sender.send(result).unwrap()));
        receiver.recv().unwrap().unwrap();
        std::mem::take(&mut *told.lock().unwrap())
    };
    let write = |fua| Op::Write { offset: 0, data: Buf::copy_of(&[1; 4096]), fua };
    let origin = Origin { pid: 3, ..Origin::default() };
    assert_eq!(wait(&|done| handle.submit(write(false), origin, done)), ["4096 async bytes of 3"]);
    assert_eq!(wait(&|done| handle.submit(write(true), origin, done)), ["4096 sync bytes of 3"]);
    let asked = wait(&|done| handle.submit_unidentified(write(false), origin, done));
    assert!(asked[0].starts_with("asked about Write") && asked[0].ends_with("of 3"), "{asked:?}");
    assert_eq!(asked[1..], ["4096 async bytes of 7", "over"]);
    let asked = wait(&|done| handle.submit_unidentified(Op::Flush, origin, done));
    assert_eq!(asked, ["asked about Flush of 3", "over"]);
    volume.end(Ending::Keep).unwrap();
}
