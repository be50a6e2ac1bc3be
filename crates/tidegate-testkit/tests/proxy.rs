//! The proxy applies its faults, seen from a client and from a server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use tidegate::clock::SystemClock;
use tidegate_testkit::proxy::{Fault, Proxy};
use tidegate_testkit::servers::{free_port, until};

const LONG: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(30);

/// A server that reports each received line to the test, and sends it back.
fn echo() -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (told, got) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let (mut connection, told) = (connection.unwrap(), told.clone());
            thread::spawn(move || {
                for line in BufReader::new(connection.try_clone().unwrap()).lines() {
                    let Ok(line) = line else { return };
                    let _ = told.send(line.clone());
                    let _ = connection.write_all(format!("{line}\n").as_bytes());
                }
            });
        }
    });
    (address, got)
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn of(proxy: &Proxy) -> Self {
        Self(BufReader::new(TcpStream::connect(proxy.addr()).unwrap()))
    }

    fn say(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hear(&mut self, within: Duration) -> io::Result<String> {
        self.0.get_mut().set_read_timeout(Some(within)).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn hears_nothing(&mut self) -> bool {
        self.0.get_mut().set_read_timeout(Some(SHORT)).unwrap();
        let heard = self.0.read(&mut [0]).map_err(|error| error.kind());
        matches!(heard, Err(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}

#[test]
fn bytes_pass_and_connections_are_counted() {
    let (server, _got) = echo();
    let proxy = Proxy::to(server).unwrap();
    let mut client = Client::of(&proxy);
    client.say("hello");
    assert_eq!(client.hear(LONG).unwrap(), "hello");
    assert_eq!((proxy.connections(), proxy.accepted()), (1, 1));
    drop(client);
    until("the connection is gone", LONG, || Ok(proxy.connections() == 0)).unwrap();
}

#[test]
fn a_delay_takes_as_long_both_ways() {
    let (server, _got) = echo();
    let proxy = Proxy::to(server).unwrap();
    let mut client = Client::of(&proxy);
    proxy.set(Fault::Delay(Duration::from_millis(25)));
    let clock = SystemClock::new();
    let sent_us = clock.steady_us();
    client.say("slow");
    assert_eq!(client.hear(LONG).unwrap(), "slow");
    assert!(clock.steady_us() - sent_us >= 50_000);
}

#[test]
fn a_stalled_proxy_accepts_and_is_silent_and_passes_everything_on_afterwards() {
    let (server, got) = echo();
    let proxy = Proxy::to(server).unwrap();
    let mut before = Client::of(&proxy);
    before.say("a");
    assert_eq!(before.hear(LONG).unwrap(), "a");
    proxy.set(Fault::Stall);
    let mut during = Client::of(&proxy);
    before.say("b");
    during.say("c");
    assert!(before.hears_nothing() && during.hears_nothing());
    assert_eq!(got.try_iter().collect::<Vec<_>>(), ["a"]);
    proxy.set(Fault::None);
    assert_eq!(before.hear(LONG).unwrap(), "b");
    assert_eq!(during.hear(LONG).unwrap(), "c");
}

#[test]
fn dropped_answers_never_come_though_requests_arrive() {
    let (server, got) = echo();
    let proxy = Proxy::to(server).unwrap();
    let mut client = Client::of(&proxy);
    proxy.set(Fault::DropAnswers);
    client.say("lost");
    assert_eq!(got.recv_timeout(LONG).unwrap(), "lost");
    assert!(client.hears_nothing());
    // A later answer would be taken for the lost one.
    proxy.set(Fault::None);
    client.say("later");
    assert_eq!(got.recv_timeout(LONG).unwrap(), "later");
    assert!(client.hears_nothing());
    let mut anew = Client::of(&proxy);
    anew.say("well");
    assert_eq!(anew.hear(LONG).unwrap(), "well");
}

#[test]
fn a_cut_ends_every_connection_stalled_ones_too_and_new_ones_are_well() {
    let (server, _got) = echo();
    let proxy = Proxy::to(server).unwrap();
    let mut clients = [Client::of(&proxy), Client::of(&proxy)];
    for client in &mut clients {
        client.say("here");
        client.hear(LONG).unwrap();
    }
    proxy.set(Fault::Stall);
    clients[0].say("stalled");
    proxy.cut();
    for client in &mut clients {
        // An end, or a reset.
        assert!(client.hear(LONG).map_or(true, |line| line.is_empty()));
    }
    assert_eq!(proxy.connections(), 0);
    proxy.set(Fault::None);
    let mut anew = Client::of(&proxy);
    anew.say("again");
    assert_eq!(anew.hear(LONG).unwrap(), "again");
}

#[test]
fn refused_connections_are_refused_by_the_system_and_open_ones_go_on() {
    let (server, _got) = echo();
    let proxy = Proxy::to(server).unwrap();
    let mut open = Client::of(&proxy);
    open.say("before");
    assert_eq!(open.hear(LONG).unwrap(), "before");
    for _ in 0..3 {
        proxy.set(Fault::Refuse);
        let refused = TcpStream::connect(proxy.addr()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        open.say("still");
        assert_eq!(open.hear(LONG).unwrap(), "still");
        proxy.set(Fault::None);
        let mut anew = Client::of(&proxy);
        anew.say("back");
        assert_eq!(anew.hear(LONG).unwrap(), "back");
    }
}

#[test]
fn a_proxy_whose_server_is_gone_ends_connections() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let proxy = Proxy::to(nobody).unwrap();
    let mut client = Client::of(&proxy);
    assert!(client.hear(LONG).map_or(true, |line| line.is_empty()));
    let address = proxy.addr();
    proxy.set(Fault::Refuse);
    drop(proxy);
    assert!(TcpStream::connect(address).is_err());
}
