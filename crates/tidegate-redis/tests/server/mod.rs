//! A Redis of its own for one test, on a socket that nobody else knows.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use redis::Connection;

/// A running server; it ends with its owner.
pub(crate) struct Server {
    process: Child,
    directory: PathBuf,
}

impl Server {
    pub(crate) fn start() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-redis-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let process = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(&directory)
            .current_dir(&directory)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, directory }
    }

    /// A connection, as soon as the server takes one.
    pub(crate) fn connect(&mut self) -> Connection {
        let socket = self.directory.join("redis.sock");
        let client = redis::Client::open(format!("redis+unix://{}", socket.display())).unwrap();
        loop {
            if let Ok(connection) = client.get_connection() {
                return connection;
            }
            assert_eq!(self.process.try_wait().unwrap(), None, "the server ended");
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}
