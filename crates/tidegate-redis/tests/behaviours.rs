//! The script shows every behaviour that a store must show.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use server::Server;
use tidegate::clock::Now;
use tidegate_redis::script_store::ScriptStore;
use tidegate_testkit::behaviours::{StoreUnderTest, every_behaviour};
use tidegate_testkit::block_on;

/// The script on a clock that the behaviours set; Redis has one clock, so both hands agree.
struct OnFixedTime {
    store: ScriptStore,
    now_us: AtomicU64,
}

impl StoreUnderTest for OnFixedTime {
    type Store = ScriptStore;

    fn store(&self) -> &ScriptStore {
        &self.store
    }

    fn now(&self) -> Now {
        let now_us = self.now_us.load(Ordering::Relaxed);
        Now { steady_us: now_us, unix_us: now_us }
    }

    async fn advance(&self, us: u64) {
        self.now_us.fetch_add(us, Ordering::Relaxed);
    }
}

#[test]
fn the_script_shows_every_behaviour() {
    let server = RefCell::new(Server::start());
    let make = async || {
        let store = ScriptStore::new(server.borrow_mut().connect(), "tg:").unwrap();
        OnFixedTime { store, now_us: AtomicU64::new(1_767_603_612_345_678) }
    };
    block_on(every_behaviour(make)).unwrap();
}
