//! Segments that are registered with a driver: each once, from the first copy on, until the segment goes.

use std::{ptr::NonNull, sync::Arc};

use transferqueue::unit::Mapping;

use crate::Error;

/// What registers memory. (The driver; in tests, what watches over it.)
pub(crate) trait Pins: Send + Sync + 'static {
    /// Registers a range that stays where it is until [`Pins::unpin`]; `writable`: the device may write to it.
    fn pin(&self, range: NonNull<[u8]>, writable: bool) -> Result<(), Error>;

    /// Ends the registration that begins there.
    fn unpin(&self, start: NonNull<u8>);
}

/// What came of registering a segment; it is attached to it, and ends with it.
pub(crate) struct Registered<P: Pins> {
    pins: Arc<P>,
    start: NonNull<u8>,
    refused: Option<Error>,
}

// SAFETY: the address is only ever given to the driver; it belongs to the mapping that this is attached to.
#[expect(unsafe_code, reason = "an address that any thread may hand on")]
unsafe impl<P: Pins> Send for Registered<P> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "an address that any thread may hand on")]
unsafe impl<P: Pins> Sync for Registered<P> {}

impl<P: Pins> Registered<P> {
    /// The registration of a segment, which is made when it is asked for first. A refusal is asked for once, too.
    pub(crate) fn of(pins: &Arc<P>, mapping: &Mapping) -> Arc<Self> {
        let made = mapping.attached(|mapping| {
            let (range, writable) = (mapping.range(), mapping.is_writable());
            let refused = pins.pin(range, writable).err();
            if let Some(error) = &refused {
                tracing::warn!(%error, ?mapping, writable, "copies from and to this segment go through the driver's memory");
            }
            Ok::<_, std::convert::Infallible>(Self { pins: pins.clone(), start: range.cast(), refused })
        });
        made.unwrap_or_else(|never| match never {})
    }

    /// Whether the device reaches it by itself.
    pub(crate) fn is_pinned(&self) -> bool {
        self.refused.is_none()
    }
}

impl<P: Pins> Drop for Registered<P> {
    fn drop(&mut self) {
        if self.is_pinned() {
            self.pins.unpin(self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::Mutex,
        time::{Duration, Instant},
    };

    use transferqueue::{
        Column, Definition, Dtype, Kind, NewRow, Options, Outputs, PartitionId, Session, Store,
        catalog::definition::{Birth, Partition, Task},
        client::{self, Choice, Remote},
        server,
        transport::View,
    };

    use super::*;

    /// Ranges that are registered, by their start: bytes, and whether the device may write.
    #[derive(Default)]
    struct Watch {
        pinned: Mutex<BTreeMap<usize, (usize, bool)>>,
        asked: Mutex<usize>,
        refuse: bool,
    }

    impl Pins for Watch {
        fn pin(&self, range: NonNull<[u8]>, writable: bool) -> Result<(), Error> {
            *self.asked.lock().unwrap() += 1;
            if self.refuse {
                return Err(Error::Cuda { what: "registering".into(), name: "REFUSED".into(), said: "no".into() });
            }
            let start = range.cast::<u8>().as_ptr() as usize;
            assert!(start.is_multiple_of(4096) && range.len().is_multiple_of(4096), "whole pages");
            assert_eq!(self.pinned.lock().unwrap().insert(start, (range.len(), writable)), None, "twice");
            Ok(())
        }

        fn unpin(&self, start: NonNull<u8>) {
            let start = start.as_ptr() as usize;
            // What is unmapped by now could not be told by its pages.
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            assert!(maps.contains(&format!("{start:x}-")) || maps.contains(&format!("-{start:x}")), "unmapped before");
            assert!(self.pinned.lock().unwrap().remove(&start).is_some(), "never registered");
        }
    }

    impl Watch {
        fn all(&self) -> Vec<(usize, bool)> {
            self.pinned.lock().unwrap().values().copied().collect()
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    fn store() -> Store {
        let column = Column::new("x", Kind::Dense { dtype: Dtype::U8, shape: vec![1 << 20] });
        let jobs = Partition { name: "jobs".into(), columns: vec![column], birth: Birth::Put { capacity: None } };
        let read = Task { reads: vec!["x".into()], ..Task::new("read", "jobs") };
        let definition = Definition { partitions: vec![jobs], tasks: vec![read], ..Definition::default() };
        Store::create(definition, Options { shared: true, arena_segment_bytes: 4 << 20, ..Options::default() }).unwrap()
    }

    fn put(session: &Session) {
        let cells = Outputs::new().dense("x", vec![7_u8; 1 << 20]);
        session.put(PartitionId(0), vec![NewRow::default()], cells, soon()).unwrap();
    }

    fn views(session: &Session) -> Vec<View> {
        session.read(PartitionId(0), None, &["x"]).unwrap().views("x").unwrap().to_vec()
    }

    fn register(watch: &Arc<Watch>, views: &[View]) -> Vec<bool> {
        views.iter().map(|view| Registered::of(watch, &view.mapping().unwrap()).is_pinned()).collect()
    }

    /// Threads of a store or a connection that end may keep it for a while.
    fn gone(watch: &Watch) {
        let until = soon();
        while !watch.all().is_empty() {
            assert!(Instant::now() < until, "30 s, and still registered");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_segment_is_registered_once_for_all_of_its_cells_and_goes_before_its_memory() {
        let (watch, store) = (Arc::new(Watch::default()), store());
        let session = store.session("here").unwrap();
        (0..3).for_each(|_| put(&session));
        let here = views(&session);
        assert_eq!(here.len(), 3);
        assert_eq!(register(&watch, &here), [true; 3]);
        assert_eq!(register(&watch, &here), [true; 3]);
        assert_eq!((watch.all(), *watch.asked.lock().unwrap()), (vec![(4 << 20, true)], 1));
        // The store ends; who still looks at a cell keeps its segment registered.
        drop(session);
        drop(store);
        assert_eq!(watch.all().len(), 1);
        drop(here);
        gone(&watch);
    }

    #[test]
    fn what_another_process_shows_is_registered_to_be_read_alone() {
        let (watch, store) = (Arc::new(Watch::default()), store());
        let server = server::serve(&store, &server::Options::default()).unwrap();
        put(&store.session("here").unwrap());
        let options = client::Options { transport: Choice::Shm, ..client::Options::default() };
        let remote = Remote::connect(server.url(), server.token(), options).unwrap();
        let session = remote.session("there").unwrap();
        let there = views(&session);
        assert_eq!(register(&watch, &there), [true]);
        assert_eq!(watch.all(), [(4 << 20, false)], "the reader's own mapping, not the store's in the same process");
        drop((there, session, remote));
        gone(&watch);
    }

    #[test]
    fn a_refusal_is_asked_for_once_and_nothing_is_undone() {
        let (watch, store) = (Arc::new(Watch { refuse: true, ..Watch::default() }), store());
        let session = store.session("here").unwrap();
        put(&session);
        let here = views(&session);
        assert_eq!(register(&watch, &here), [false]);
        assert_eq!(register(&watch, &here), [false]);
        drop((here, session, store));
        assert_eq!(*watch.asked.lock().unwrap(), 1);
    }
}
