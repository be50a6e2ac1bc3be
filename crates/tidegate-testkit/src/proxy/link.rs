//! One connection through the proxy: a thread for each direction.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;

use super::{Fault, Shared};

#[derive(Debug)]
pub(super) struct Link {
    client: TcpStream,
    server: TcpStream,
    open: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Requests,
    Answers,
}

impl Link {
    pub(super) fn new(client: TcpStream, server: TcpStream) -> io::Result<Self> {
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        Ok(Self { client, server, open: AtomicBool::new(true) })
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    pub(super) fn cut(&self) {
        self.open.store(false, Ordering::SeqCst);
        for stream in [&self.client, &self.server] {
            // A connection that is closed already is fine.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn start(self: Arc<Self>, shared: &Arc<Shared>) {
        for direction in [Direction::Requests, Direction::Answers] {
            let (link, shared) = (Arc::clone(&self), Arc::clone(shared));
            thread::spawn(move || {
                // However it ends, the connection is over.
                let _ = link.carry(&shared, direction);
                link.cut();
            });
        }
    }

    /// Carries bytes until either side ends.
    fn carry(&self, shared: &Shared, direction: Direction) -> io::Result<()> {
        let (mut from, mut to) = match direction {
            Direction::Requests => (&self.client, &self.server),
            Direction::Answers => (&self.server, &self.client),
        };
        let mut bytes = [0; 16 * 1024];
        let mut lost_some = false;
        loop {
            let count = from.read(&mut bytes)?;
            if count == 0 {
                return Ok(());
            }
            let fault = self.wait_while_stalled(shared);
            lost_some |= fault == Fault::DropAnswers && direction == Direction::Answers;
            if lost_some {
                continue;
            }
            if let Fault::Delay(delay) = fault {
                thread::sleep(delay);
            }
            to.write_all(&bytes[..count])?;
        }
    }

    fn wait_while_stalled(&self, shared: &Shared) -> Fault {
        let stalled = |state: &mut super::State| state.fault == Fault::Stall && self.is_open();
        let state = shared.changed.wait_while(shared.state(), stalled);
        state.unwrap_or_else(PoisonError::into_inner).fault
    }
}
