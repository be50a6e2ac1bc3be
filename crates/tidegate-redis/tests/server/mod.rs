//! A Redis of its own for one test, asked by a plain client.

use redis::Connection;

/// A running server; it ends with its owner.
pub(crate) struct Server(tidegate_testkit::servers::Server);

impl Server {
    pub(crate) fn start() -> Self {
        Self(tidegate_testkit::servers::Server::start().unwrap())
    }

    pub(crate) fn connect(&mut self) -> Connection {
        redis::Client::open(self.0.url()).unwrap().get_connection().unwrap()
    }
}
