//! A cluster of three primaries with a replica each.

use std::io;
use std::time::Duration;

use super::{Server, Tls, free_port, until};

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16_384;
const READY: Duration = Duration::from_secs(20);
/// Longer than a replica tries to take its primary's place.
const ATTEMPT: Duration = Duration::from_secs(6);
/// How long a node is silent before the others declare it down. With a shorter time a busy machine
/// would fail over by itself.
const NODE_TIMEOUT_MS: &str = "2000";

/// Six nodes that form a cluster.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster. It is ready when every node says so and every replica is in step.
    ///
    /// # Errors
    /// The binary is not installed, or the cluster does not form.
    pub fn start() -> io::Result<Self> {
        Self::start_as(None)
    }

    /// Starts a cluster whose nodes speak TLS with each other, and with clients on a second port.
    ///
    /// # Errors
    /// The binary is not installed or has no TLS, or the cluster does not form.
    pub fn start_with_tls(tls: &Tls) -> io::Result<Self> {
        Self::start_as(Some(tls))
    }

    fn start_as(tls: Option<&Tls>) -> io::Result<Self> {
        let arguments = || {
            let bus = free_port()?.to_string();
            let arguments = ["--cluster-enabled", "yes", "--cluster-port", &bus];
            let timeout = ["--cluster-node-timeout", NODE_TIMEOUT_MS];
            let own = arguments.into_iter().chain(timeout).map(str::to_owned);
            let secured = tls.map(Tls::arguments).transpose()?.unwrap_or_default();
            Ok(own.chain(secured).collect())
        };
        let nodes = (0..NODES).map(|_| Server::start_with_ports(arguments));
        let cluster = Self { nodes: nodes.collect::<io::Result<_>>()? };
        cluster.form()?;
        Ok(cluster)
    }

    /// Its nodes: three that were primaries at first, then their replicas in the same order.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The URLs of its nodes.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// The first node cannot be reached.
    pub fn slot_of(&self, key: &str) -> io::Result<usize> {
        match self.nodes[0].command(&["CLUSTER", "KEYSLOT", key])? {
            super::Reply::Integer(slot) => usize::try_from(slot).map_err(io::Error::other),
            other => Err(io::Error::other(format!("not a slot: {other:?}"))),
        }
    }

    /// The index of the primary that first had this slot; the index of its replica is three higher.
    #[must_use]
    pub fn first_owner_of(&self, slot: usize) -> usize {
        (0..PRIMARIES).find(|index| slots(*index).contains(&slot)).unwrap_or(0)
    }

    /// Whether a node is a primary now.
    ///
    /// # Errors
    /// It cannot be reached.
    pub fn is_primary(&self, node: usize) -> io::Result<bool> {
        Ok(self.nodes[node].info("role")? == "master")
    }

    /// The replica takes its primary's place without losing anything (`CLUSTER FAILOVER`).
    ///
    /// # Errors
    /// This takes longer than twenty seconds.
    pub fn fail_over_to(&self, replica: usize) -> io::Result<()> {
        self.nodes[replica].command(&["CLUSTER", "FAILOVER"])?;
        let taken = until("the replica is a primary", ATTEMPT, || self.is_primary(replica));
        if taken.is_err() {
            // Redis gives up an attempt after five seconds if the votes come too late.
            self.nodes[replica].command(&["CLUSTER", "FAILOVER"])?;
        }
        self.wait_for_new_primary(replica)
    }

    /// Kills a primary, and waits until its replica has taken its place.
    ///
    /// # Errors
    /// This takes longer than twenty seconds.
    pub fn lose(&self, primary: usize) -> io::Result<()> {
        self.nodes[primary].kill()?;
        self.wait_for_new_primary((primary + PRIMARIES) % NODES)
    }

    /// Makes a node announce another port, such as that of a [proxy](crate::proxy) in front of it. Its
    /// replica then reaches it there too.
    ///
    /// # Errors
    /// The others do not hear of it within twenty seconds.
    pub fn announce(&self, node: usize, port: u16) -> io::Result<()> {
        let (port, id) = (port.to_string(), self.id(node)?);
        self.nodes[node].command(&["CONFIG", "SET", "cluster-announce-port", &port])?;
        let told = format!("{id} 127.0.0.1:{port}@");
        until("all nodes know the announced port", READY, || {
            self.all(|node| {
                let table = node.command(&["CLUSTER", "NODES"])?;
                Ok(table.text().lines().any(|line| line.starts_with(&*told)))
            })
        })
    }

    /// Begins to move a slot: until it is [finished](Self::finish_move), clients are sent on (ASK)
    /// for keys that are not there any more, and told to try again where only some are.
    ///
    /// # Errors
    /// A node cannot be reached, or refuses.
    pub fn begin_move(&self, slot: usize, from: usize, to: usize) -> io::Result<()> {
        let (slot, from_id, to_id) = (slot.to_string(), self.id(from)?, self.id(to)?);
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id])?;
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).map(|_| ())
    }

    /// Moves one key of a slot that is being moved.
    ///
    /// # Errors
    /// A node cannot be reached, or refuses.
    pub fn move_key(&self, key: &str, from: usize, to: usize) -> io::Result<()> {
        let port = self.nodes[to].port().to_string();
        self.nodes[from].command(&["MIGRATE", "127.0.0.1", &port, key, "0", "2000"]).map(|_| ())
    }

    /// Moves the remaining keys of the slot, and tells all primaries its new owner.
    ///
    /// # Errors
    /// A node cannot be reached, or refuses.
    pub fn finish_move(&self, slot: usize, from: usize, to: usize) -> io::Result<()> {
        let (slot, to_id) = (slot.to_string(), self.id(to)?);
        let left = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "10000"])?;
        for key in left.items() {
            self.move_key(key.text(), from, to)?;
        }
        for node in [to, from].into_iter().chain(0..NODES) {
            if self.is_primary(node)? {
                self.nodes[node].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id])?;
            }
        }
        Ok(())
    }

    fn id(&self, node: usize) -> io::Result<String> {
        Ok(self.nodes[node].command(&["CLUSTER", "MYID"])?.text().to_owned())
    }

    fn form(&self) -> io::Result<()> {
        for (index, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
        }
        let (primaries, replicas) = self.nodes.split_at(PRIMARIES);
        for (index, node) in primaries.iter().enumerate() {
            let slots = slots(index);
            let (first, last) = (slots.start.to_string(), (slots.end - 1).to_string());
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
        }
        for node in &self.nodes[1..] {
            let (port, bus) = (node.peer_port().to_string(), bus_of(node)?);
            self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        until("all nodes know each other", READY, || self.all(|node| Ok(known(node)? == NODES)))?;
        for (index, node) in replicas.iter().enumerate() {
            node.command(&["CLUSTER", "REPLICATE", &self.id(index)?])?;
        }
        until("the cluster is ready", READY, || {
            self.all(|node| Ok(is_ok(node)? && is_in_step(node)? && knows_replicas(node)?))
        })
    }

    /// Waits until this node is a primary, and all that run agree that the cluster is well.
    fn wait_for_new_primary(&self, node: usize) -> io::Result<()> {
        let slots = slots(node % PRIMARIES);
        let id = self.id(node)?;
        until("the replica has taken over", READY, || {
            // A node that does not run is not asked.
            let agrees = |node: &Server| -> io::Result<bool> {
                let Ok(table) = node.command(&["CLUSTER", "NODES"]) else { return Ok(true) };
                let mut lines = table.text().lines().filter(|line| line.starts_with(&*id));
                let owns = format!(" {}-", slots.start);
                Ok(lines.any(|line| line.contains("master") && line.contains(&owns)))
            };
            Ok(self.is_primary(node)? && self.all(agrees)? && is_ok(&self.nodes[node])?)
        })
    }

    fn all(&self, is_so: impl Fn(&Server) -> io::Result<bool>) -> io::Result<bool> {
        for node in &self.nodes {
            if !is_so(node)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The slots of one of the first primaries.
fn slots(primary: usize) -> std::ops::Range<usize> {
    SLOTS * primary / PRIMARIES..SLOTS * (primary + 1) / PRIMARIES
}

fn is_ok(node: &Server) -> io::Result<bool> {
    Ok(node.command(&["CLUSTER", "INFO"])?.text().contains("cluster_state:ok"))
}

fn is_in_step(node: &Server) -> io::Result<bool> {
    Ok(node.info("role")? == "master" || node.info("master_link_status")? == "up")
}

/// Whether the node knows all replicas: a primary hands over only to a replica that it knows.
fn knows_replicas(node: &Server) -> io::Result<bool> {
    let table = node.command(&["CLUSTER", "NODES"])?;
    let replicas = table.text().lines().filter(|line| line.contains("slave"));
    Ok(replicas.count() == NODES - PRIMARIES)
}

/// The number of nodes that this node knows, itself included.
fn known(node: &Server) -> io::Result<usize> {
    let table = node.command(&["CLUSTER", "NODES"])?;
    Ok(table.text().lines().filter(|line| !line.contains("handshake")).count())
}

fn bus_of(node: &Server) -> io::Result<String> {
    let reply = node.command(&["CONFIG", "GET", "cluster-port"])?;
    Ok(reply.items().get(1).map(|port| port.text().to_owned()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::Proxy;

    #[test]
    fn a_cluster_serves_all_slots_and_outlives_its_primaries() {
        let cluster = Cluster::start().unwrap();
        assert_eq!(cluster.urls().len(), NODES);
        let slot = cluster.slot_of("k").unwrap();
        let owner = cluster.first_owner_of(slot);
        cluster.nodes()[owner].command(&["SET", "k", "v"]).unwrap();
        let elsewhere = &cluster.nodes()[(owner + 1) % PRIMARIES];
        let sent_on = elsewhere.command(&["GET", "k"]).unwrap_err().to_string();
        assert!(sent_on.starts_with(&format!("MOVED {slot} ")), "{sent_on}");

        let replica = owner + PRIMARIES;
        cluster.fail_over_to(replica).unwrap();
        assert_eq!(cluster.nodes()[replica].command(&["GET", "k"]).unwrap().text(), "v");
        let lost = (owner + 1) % PRIMARIES;
        cluster.lose(lost).unwrap();
        assert!(cluster.is_primary(lost + PRIMARIES).unwrap());
    }

    #[test]
    fn clients_are_sent_to_the_port_that_a_node_announces() {
        let cluster = Cluster::start().unwrap();
        let slot = cluster.slot_of("k").unwrap();
        let owner = cluster.first_owner_of(slot);
        let proxy = Proxy::to(cluster.nodes()[owner].addr()).unwrap();
        cluster.announce(owner, proxy.addr().port()).unwrap();
        let elsewhere = &cluster.nodes()[(owner + 1) % PRIMARIES];
        let sent_on = elsewhere.command(&["GET", "k"]).unwrap_err().to_string();
        assert_eq!(sent_on, format!("MOVED {slot} {}", proxy.addr()));
    }

    #[test]
    fn a_slot_that_is_being_moved_sends_clients_on() {
        let cluster = Cluster::start().unwrap();
        let slot = cluster.slot_of("{t}a").unwrap();
        let from = cluster.first_owner_of(slot);
        let to = (from + 1) % PRIMARIES;
        for key in ["{t}a", "{t}b"] {
            cluster.nodes()[from].command(&["SET", key, "v"]).unwrap();
        }
        cluster.begin_move(slot, from, to).unwrap();
        cluster.move_key("{t}a", from, to).unwrap();
        let told =
            |command: &[&str]| cluster.nodes()[from].command(command).unwrap_err().to_string();
        assert!(told(&["GET", "{t}a"]).starts_with("ASK "));
        assert!(told(&["MGET", "{t}a", "{t}b"]).starts_with("TRYAGAIN"));
        cluster.finish_move(slot, from, to).unwrap();
        assert!(told(&["GET", "{t}b"]).starts_with("MOVED "));
        assert_eq!(cluster.nodes()[to].command(&["GET", "{t}b"]).unwrap().text(), "v");
    }
}
