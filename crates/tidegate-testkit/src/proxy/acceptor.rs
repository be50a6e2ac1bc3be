//! The thread that takes connections, and refuses them by not listening.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, PoisonError};

use super::link::Link;
use super::{Fault, Shared};

/// Listens, and notes that it does.
pub(super) fn listen(shared: &Shared, address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    shared.state().listening = true;
    shared.changed.notify_all();
    Ok(listener)
}

/// Accepts connections until the proxy closes.
pub(super) fn run(shared: &Arc<Shared>, address: SocketAddr, mut listener: TcpListener) {
    loop {
        let accepted = listener.accept();
        if shared.state().closing {
            return;
        }
        if shared.state().fault == Fault::Refuse {
            drop(accepted);
            drop(listener);
            shared.state().listening = false;
            shared.changed.notify_all();
            match wait_and_listen(shared, address) {
                Some(anew) => listener = anew,
                None => return,
            }
        } else if let Ok((client, _)) = accepted {
            connect(shared, client);
        }
    }
}

/// Waits until connections are accepted again; `None` if the proxy closes.
fn wait_and_listen(shared: &Shared, address: SocketAddr) -> Option<TcpListener> {
    let refused = |state: &mut super::State| state.fault == Fault::Refuse && !state.closing;
    let state = shared.changed.wait_while(shared.state(), refused);
    let closing = state.unwrap_or_else(PoisonError::into_inner).closing;
    if closing { None } else { listen(shared, address).ok() }
}

fn connect(shared: &Arc<Shared>, client: TcpStream) {
    // The client sees a missing server as a closed connection.
    let Ok(server) = TcpStream::connect(shared.server) else { return };
    let Ok(link) = Link::new(client, server) else { return };
    let link = Arc::new(link);
    let mut state = shared.state();
    state.accepted += 1;
    state.links.retain(|link| link.is_open());
    state.links.push(Arc::clone(&link));
    drop(state);
    link.start(shared);
}
