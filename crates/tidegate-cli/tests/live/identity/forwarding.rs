//! The client's address, from any forwarding headers.

use super::World;

const LOOPBACK: &str = "{ trusted_proxies: [127.0.0.0/8, 10.0.0.0/8] }";

/// The lines of each header, and the address that they must count as; `None` is the proxy itself.
type Case<'c> = (&'c [&'c [u8]], Option<&'c [u8]>);

const CLIENT: &[u8] = b"X-Forwarded-For: 192.0.2.7";

#[test]
fn an_untrusted_peer_states_no_identity() {
    let world = World::new("{ trusted_proxies: [10.0.0.0/8] }");
    for lines in [
        &[&b"X-Forwarded-For: 192.0.2.7"[..]][..],
        &[b"X-Forwarded-For: 10.0.0.1"],
        &[b"X-Forwarded-For: 192.0.2.8, 10.0.0.1"],
        &[b"X-Real-IP: 192.0.2.7", b"Forwarded: for=192.0.2.7", b"X-Forwarded-For: 192.0.2.9"],
        &[b"X_Forwarded_For: 192.0.2.7"],
        &[b"Connection: X-Forwarded-For", b"X-Forwarded-For: 192.0.2.7"],
    ] {
        world.assert_same(lines, &[]);
        let seen = world.upstream.last();
        assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"), "{:?}", seen.headers);
        for name in ["x-real-ip", "forwarded", "x_forwarded_for"] {
            assert_eq!(seen.header(name), None, "{:?}", seen.headers);
        }
    }
}

#[test]
fn without_trusted_proxies_no_identity_header_is_believed() {
    let world = World::new("{}");
    for octet in 0..5 {
        world.assert_same(&[format!("X-Forwarded-For: 192.0.2.{octet}").as_bytes()], &[]);
        world.assert_same(&[format!("X-Forwarded-For: 127.0.0.{octet}").as_bytes()], &[]);
    }
}

#[test]
fn the_last_hop_that_is_not_trusted_is_the_client() {
    let world = World::new(LOOPBACK);
    let cases: &[Case<'_>] = &[
        (&[b"X-Forwarded-For:192.0.2.7"], Some(CLIENT)),
        (&[b"x-forwarded-for: \t 192.0.2.7 \t "], Some(CLIENT)),
        (&[b"X-Forwarded-For: 6.6.6.6, 192.0.2.7"], Some(CLIENT)),
        (&[b"X-Forwarded-For: 6.6.6.6,192.0.2.7,10.0.0.9 ,\t127.0.0.2"], Some(CLIENT)),
        (&[b"X-Forwarded-For: 6.6.6.6", b"X-Forwarded-For: 192.0.2.7"], Some(CLIENT)),
        (&[b"X-Forwarded-For: 192.0.2.7", b"X-Forwarded-For: 10.0.0.9"], Some(CLIENT)),
        (&[b"X-Forwarded-For: 192.0.2.7:4711"], Some(CLIENT)),
        (&[b"X-Forwarded-For: ::ffff:192.0.2.7"], Some(CLIENT)),
        (&[b"X-Forwarded-For: [::ffff:192.0.2.7]:80"], Some(CLIENT)),
        // An IPv6 client is its /64.
        (&[b"X-Forwarded-For: 2001:db8::1"], Some(b"X-Forwarded-For: 2001:db8::2")),
        (&[b"X-Forwarded-For: [2001:DB8::9]:443"], Some(b"X-Forwarded-For: 2001:db8::2")),
        // Other headers are not read beside it.
        (&[b"X-Forwarded-For: 192.0.2.7", b"X-Real-IP: 6.6.6.6"], Some(CLIENT)),
        (&[b"X-Real-IP: 6.6.6.6", b"Forwarded: for=6.6.6.6"], None),
        (&[b"X-Forwarded-For: 10.0.0.9"], Some(b"X-Forwarded-For: 10.0.0.9, 10.0.0.8")),
    ];
    for (lines, plain) in cases {
        world.assert_same(lines, plain.as_slice());
    }
}

#[test]
fn an_entry_that_is_no_address_ends_the_walk_at_the_hop_that_wrote_it() {
    let world = World::new(LOOPBACK);
    let cases: &[Case<'_>] = &[
        (&[b"X-Forwarded-For: "], None),
        (&[b"X-Forwarded-For: ,"], None),
        (&[b"X-Forwarded-For: unknown"], None),
        (&[b"X-Forwarded-For: 192.0.2.7, "], None),
        (&[b"X-Forwarded-For: 192.0.2.7", b"X-Forwarded-For:"], None),
        (&[b"X-Forwarded-For: 192.0.2.7, 1.2.3"], None),
        (&[b"X-Forwarded-For: 192.0.2.7 10.0.0.9"], None),
        (&[b"X-Forwarded-For: \xff"], None),
        (&[b"X-Forwarded-For: 192.0.2.7, \xc3\x28"], None),
        (&[b"X-Forwarded-For: 192.0.2.7\xa0"], None),
        // The proxy's own entry counts, whatever a client sends before it.
        (&[b"X-Forwarded-For: junk, 192.0.2.7"], Some(CLIENT)),
        (&[b"X-Forwarded-For: \"6.6.6.6, 192.0.2.7"], Some(CLIENT)),
        (&[b"X-Forwarded-For: \xff\xfe, 192.0.2.7"], Some(CLIENT)),
        (&[b"X-Forwarded-For: \xff", b"X-Forwarded-For: 192.0.2.7"], Some(CLIENT)),
    ];
    for (lines, plain) in cases {
        world.assert_same(lines, plain.as_slice());
    }
}

#[test]
fn bytes_that_are_not_text_do_not_pass_a_client_for_an_internal_proxy() {
    let world = World::of(
        "
tidegate: 1
name: live
identity: { trusted_proxies: [127.0.0.0/8], internal: { cidrs: [127.0.0.0/8] } }
exempt: [{ internal: true }]
limits: { each: { by: client, total: 1000 } }
",
    );
    assert_eq!(world.send(&[]).header("x-ratelimit-remaining"), None, "the proxy is exempt");
    world.assert_same(&[b"X-Forwarded-For: \xff, 192.0.2.7"], &[CLIENT]);
}

#[test]
fn forwarded_is_read_as_its_standard_says() {
    let world = World::new("{ trusted_proxies: [127.0.0.0/8, 10.0.0.0/8], forwarded: forwarded }");
    let client: &[u8] = b"Forwarded: for=192.0.2.7";
    let cases: &[Case<'_>] = &[
        (&[b"Forwarded: For=192.0.2.7;proto=https;by=10.0.0.1"], Some(client)),
        (&[b"Forwarded: for=6.6.6.6, for=\"192.0.2.7:80\", for=10.0.0.3"], Some(client)),
        (&[b"Forwarded: for=6.6.6.6", b"forwarded: proto=http; for=192.0.2.7"], Some(client)),
        (&[b"Forwarded: for=192.0.2.7;host=\"a, for=6.6.6.6\""], Some(client)),
        (&[b"Forwarded: for=\", for=192.0.2.7"], Some(client)),
        (&[b"Forwarded: \xff, for=192.0.2.7"], Some(client)),
        (&[b"Forwarded: for=\"[2001:db8::1]:4711\""], Some(b"Forwarded: for=\"[2001:db8::2]\"")),
        (&[b"Forwarded: for=unknown"], None),
        (&[b"Forwarded: for=192.0.2.7;for=6.6.6.6"], None),
        (&[b"Forwarded: 192.0.2.7"], None),
        (&[b"X-Forwarded-For: 6.6.6.6", b"X-Real-IP: 6.6.6.6"], None),
    ];
    for (lines, plain) in cases {
        world.assert_same(lines, plain.as_slice());
    }
}

#[test]
fn x_real_ip_is_one_address_or_nothing() {
    let world = World::new("{ trusted_proxies: [127.0.0.0/8, 10.0.0.0/8], forwarded: x-real-ip }");
    let client: &[u8] = b"X-Real-IP: 192.0.2.7";
    let cases: &[Case<'_>] = &[
        (&[b"x-real-ip:  192.0.2.7 "], Some(client)),
        (&[b"X-Real-IP: 192.0.2.7:80"], Some(client)),
        (&[b"X-Real-IP: 6.6.6.6", b"X-Real-IP: 192.0.2.7"], Some(client)),
        (&[b"X-Real-IP: 192.0.2.7", b"X-Forwarded-For: 6.6.6.6"], Some(client)),
        (&[b"X-Real-IP: 6.6.6.6, 192.0.2.7"], None),
        (&[b"X-Real-IP: \xff192.0.2.7"], None),
        (&[b"X-Real-IP:"], None),
        (&[b"X-Forwarded-For: 6.6.6.6"], None),
    ];
    for (lines, plain) in cases {
        world.assert_same(lines, plain.as_slice());
    }
}
