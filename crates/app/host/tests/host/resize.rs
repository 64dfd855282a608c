//! Caches that grow, shrink and go.

use forebay_host::{Ending, HostError, grow, release, shrink};

use crate::client::Client;
use crate::place::{MIB, Place};
use crate::stamp::{divide, work};

const VOLUME: u64 = 16 * MIB;

#[test]
fn a_dirty_cache_grows() {
    let place = Place::formatted(4 * MIB, VOLUME);
    let mut territories = divide(VOLUME, 4, 31);
    let volume = place.open();
    work(&Client(volume.handle()), &mut territories, 100);
    assert!(grow(&|| false, &place.spec("cache"), Some(12 * MIB), &mut |_, _| {}).is_err(), "it is in use");
    volume.end(Ending::Keep).unwrap();
    let layout = grow(&|| false, &place.spec("cache"), Some(12 * MIB), &mut |_, _| {}).unwrap();
    assert!(layout.cache_bytes() > 11 * MIB);
    let e = grow(&|| false, &place.spec("cache"), Some(8 * MIB), &mut |_, _| {}).unwrap_err();
    assert!(e.to_string().contains("shrink"), "{e}");
    let volume = place.open();
    let client = Client(volume.handle());
    assert_eq!(
        client.0.status().cache_bytes,
        u64::from(layout.segment_count) * u64::from(layout.segment_bytes)
    );
    for territory in &mut territories {
        assert_eq!(territory.check_all(&client), 0);
    }
    work(&client, &mut territories, 300);
    volume.end(Ending::Abandon).unwrap();
    let volume = place.open();
    let client = Client(volume.handle());
    for territory in &mut territories {
        assert_eq!(territory.check_all(&client), 0);
    }
}

#[test]
fn only_a_clean_cache_shrinks_or_goes() {
    let place = Place::formatted(16 * MIB, VOLUME);
    let (cache, backing) = (place.spec("cache"), place.spec("backing"));
    let mut territories = divide(VOLUME, 4, 32);
    let volume = place.open();
    work(&Client(volume.handle()), &mut territories, 50);
    volume.end(Ending::Keep).unwrap();
    let e = shrink(&cache, &backing, 8 * MIB, &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, HostError::CacheDirty { dirty_bytes, .. } if dirty_bytes > 0), "{e}");
    let e = release(&cache, &backing).unwrap_err();
    assert!(matches!(e, HostError::CacheDirty { .. }), "{e}");
    place.run(Ending::Destage);
    let e = shrink(&cache, &backing, 4096, &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, HostError::CacheTooSmall { .. }), "{e}");
    let made = shrink(&cache, &backing, 8 * MIB, &mut |_, _| {}).unwrap();
    assert!(made.layout.cache_bytes() <= 8 * MIB);
    assert_eq!(std::fs::metadata(place.path("cache")).unwrap().len(), 8 * MIB);
    let volume = place.open();
    let client = Client(volume.handle());
    for territory in &mut territories {
        assert_eq!(territory.check_all(&client), 0);
    }
    work(&client, &mut territories, 100);
    volume.end(Ending::Destage).unwrap();
    release(&cache, &backing).unwrap();
    assert!(!place.path("backing.forebay").exists());
    let image = place.content("backing");
    territories.iter_mut().for_each(|t| t.check_image(&image));
    assert!(place.refusal().to_string().contains("removed"));
}
