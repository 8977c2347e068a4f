//! Random histories of three members: starts, crashes, copies put back, greetings that are late,
//! doubled and lost.
//!
//! `HANDSHAKE_SEEDS` says how many histories there are.

use crate::members::{MemberDirectory, MemberTrio};

const STEPS: usize = 200;

#[test]
fn an_older_copy_is_not_taken_and_sound_stores_take_each_other() {
    let given = std::env::var("HANDSHAKE_SEEDS").ok();
    let seeds = given.map_or(1_000, |given| given.parse().expect("a number of seeds"));
    let (mut pairs, mut put_back) = (0, 0);
    for seed in 0..seeds {
        println!("seed {seed}");
        let (seen_pairs, seen_put_back) = history(seed);
        pairs += seen_pairs;
        put_back += seen_put_back;
    }
    println!("{seeds} histories: {pairs} writes by pairs, {put_back} copies put back");
    assert!(pairs > seeds && put_back > seeds, "the histories reach too little");
}

/// One history; how many writes were acknowledged and how many copies put back in it.
fn history(seed: u64) -> (u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut trio = MemberTrio::new(seed.is_multiple_of(2));
    let mut copies: Vec<(usize, MemberDirectory)> = Vec::new();
    let (mut pairs, mut put_back) = (0, 0);
    for _ in 0..STEPS {
        let (at, other) = (random.usize(0..3), random.usize(1..3));
        let other = (at + other) % 3;
        match random.u32(0..100) {
            0..10 if !trio.is_running(at) => trio.start(at),
            10..13 => trio.crash(at),
            13..15 => copies.push((at, trio.copy(at))),
            15..17 if seed % 4 > 1 => {
                if let Some((at, copy)) = random.choice(&copies).cloned() {
                    trio.crash(at);
                    trio.put_back(at, copy);
                    put_back += 1;
                }
            }
            17..50 => trio.greet(at, other),
            50..85 if !trio.under_way.is_empty() => {
                let sent = random.usize(0..trio.under_way.len());
                let sent = match random.u8(0..4) {
                    // It is still under way, and comes again.
                    0 => trio.under_way[sent].clone(),
                    _ => trio.under_way.swap_remove(sent),
                };
                if random.u8(0..8) > 0 {
                    trio.arrive(&sent);
                }
            }
            85..100 if trio.take_each_other(at, other) => {
                trio.write(at, other, random.u8(0..4) > 0);
                pairs += 1;
            }
            _ => {}
        }
        trio.check_memory();
        if random.u8(0..8) == 0 {
            trio.check_calm();
        }
    }
    (pairs, put_back)
}
