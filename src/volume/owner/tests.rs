//! Owning a volume, with several owners on one folder.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::record::tests::introduction;
use super::*;

struct Place {
    root: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.root.path()
    }

    fn owners(&self) -> Dir {
        Dir::open(self.path()).unwrap()
    }

    fn acquire(&self, us: &ProcessFacts, random: u32) -> Result<Ownership, OwnerError> {
        Ownership::acquire(self.owners(), us, &introduction(random), None, at(0))
    }

    /// Changes the record of an epoch, as its writer would.
    fn forge(&self, epoch: u64, change: impl FnOnce(&mut Record)) {
        let mut record = record::read(&self.owners(), epoch).unwrap().record().unwrap();
        change(&mut record);
        small_file::replace(&self.owners(), &record::name(epoch), &record.to_json()).unwrap();
    }

    fn current(&self) -> Record {
        current(&self.owners()).unwrap().unwrap().record().unwrap()
    }
}

fn at(seconds: u64) -> Now {
    Now { wall: Timestamp::UNIX_EPOCH + Duration::from_secs(seconds), boot: Duration::from_secs(1000 + seconds) }
}

fn boot(seconds: u64) -> Duration {
    at(seconds).boot
}

fn us() -> ProcessFacts {
    ProcessFacts::read()
}

/// A process in another container: nothing can be proved about it.
fn elsewhere() -> ProcessFacts {
    ProcessFacts { pid_namespace: Some(1), host: "elsewhere".into(), ..us() }
}

fn held(result: Result<Ownership, OwnerError>) -> Holder {
    match result {
        Err(OwnerError::Held(holder)) => *holder,
        other => panic!("{other:?}"),
    }
}

/// Facts of a process of ours that has ended and was collected.
fn ended_process() -> ProcessFacts {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    ProcessFacts { pid, start_time: 1, ..us() }
}

#[test]
fn the_first_owner_gets_the_first_epoch_and_a_record_that_all_may_read() {
    let place = Place::new();
    let owner = place.acquire(&us(), 5).unwrap();
    assert_eq!((owner.epoch(), owner.writer()), (1, WriterId::new(1, 5)));
    let mode = std::fs::metadata(place.path().join("1.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    assert_eq!(place.current().socket.as_deref(), Some("/run/x.sock"));
    owner.permit(boot(0)).unwrap();
}

#[test]
fn of_many_that_race_exactly_one_wins_each_epoch() {
    let place = Place::new();
    for epoch in 1..=20 {
        let results: Vec<_> = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..4)
                .map(|random| {
                    let place = &place;
                    scope.spawn(move || place.acquire(&us(), random))
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let (mut won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(won.len(), 1, "{won:?}");
        for lost in lost {
            let holder = held(lost);
            assert!(holder.alive && holder.seen.epoch() == epoch, "{holder:?}");
        }
        let winner = won.pop().unwrap().unwrap();
        assert_eq!(winner.epoch(), epoch);
        winner.permit(boot(0)).unwrap();
        winner.release(at(0)).unwrap();
    }
}

#[test]
fn a_living_process_is_held_and_named() {
    let place = Place::new();
    let owner = place.acquire(&us(), 1).unwrap();
    let refused = Ownership::acquire(place.owners(), &us(), &introduction(2), None, at(7));
    let text = refused.as_ref().unwrap_err().to_string();
    let holder = held(refused);
    assert!(holder.alive && holder.age == Some(SignedDuration::from_secs(7)), "{holder:?}");
    assert!(text.contains(&format!("process {}", us().pid)) && text.contains("heartbeat 7 s ago"), "{text}");
    owner.permit(boot(7)).unwrap();
}

#[test]
fn a_process_that_is_gone_is_succeeded_at_once_and_its_partials_taken_in_place() {
    let place = Place::new();
    let dead = place.acquire(&ended_process(), 1).unwrap();
    let heir = place.acquire(&us(), 2).unwrap();
    assert_eq!(heir.epoch(), 2);
    assert_eq!(heir.take_over(dead.writer()), TakeOver::InPlace { same_boot: true });
    assert_eq!(heir.take_over(WriterId::new(1, 99)), TakeOver::Copy, "a twin of that epoch is not known");
    assert_eq!(dead.permit(boot(0)), Err(Lost::Superseded { by: 2 }));
    assert_eq!(dead.beat(at(1)), Err(Lost::Superseded { by: 2 }));
    heir.permit(boot(0)).unwrap();
}

#[test]
fn a_writer_that_stood_still_mends_its_permit_where_it_wants_to_write_unless_somebody_took_over() {
    let place = Place::new();
    let owner = place.acquire(&us(), 1).unwrap();
    assert!(matches!(owner.permit(boot(40)), Err(Lost::Stale { .. })));
    owner.permit_anew(at(40)).unwrap();
    owner.permit(boot(41)).unwrap();
    let dead = Place::new();
    let before = dead.acquire(&ended_process(), 1).unwrap();
    dead.acquire(&us(), 2).unwrap();
    assert_eq!(before.permit_anew(at(40)), Err(Lost::Superseded { by: 2 }));
}

#[test]
fn a_pid_that_was_given_out_again_is_not_taken_for_its_predecessor() {
    let place = Place::new();
    place.acquire(&us(), 1).unwrap();
    place.forge(1, |record| record.start_time -= 1);
    assert_eq!(place.acquire(&us(), 2).unwrap().epoch(), 2);
}

#[test]
fn an_owner_elsewhere_is_waited_for_a_whole_lease_and_its_partials_are_copied() {
    let place = Place::new();
    let other = place.acquire(&elsewhere(), 1).unwrap();
    let holder = held(place.acquire(&us(), 2));
    assert!(!holder.alive);
    let mut watch = LeaseWatch::begin(holder.seen, boot(0));
    let read = || current(&place.owners()).unwrap().unwrap();
    assert!(matches!(watch.observe(&read(), boot(10)), Lease::Running { .. }));
    other.beat(at(10)).unwrap();
    assert!(matches!(watch.observe(&read(), boot(20)), Lease::Running { left } if left == LEASE));
    assert!(matches!(watch.observe(&read(), boot(35)), Lease::Running { .. }));
    let Lease::Over(lapsed) = watch.observe(&read(), boot(50)) else { panic!("the lease is over") };

    // It wakes up just before it is taken over: the proof is worth nothing any more.
    other.beat(at(51)).unwrap();
    held(Ownership::acquire(place.owners(), &us(), &introduction(2), Some(&lapsed), at(51)));

    let mut watch = LeaseWatch::begin(read(), boot(60));
    watch.observe(&read(), boot(75));
    let Lease::Over(lapsed) = watch.observe(&read(), boot(90)) else { panic!("the lease is over") };
    let heir = Ownership::acquire(place.owners(), &us(), &introduction(2), Some(&lapsed), at(90)).unwrap();
    assert_eq!((heir.epoch(), heir.take_over(other.writer())), (2, TakeOver::Copy));
    assert_eq!(other.beat(at(91)), Err(Lost::Superseded { by: 2 }));
}

#[test]
fn a_record_that_cannot_be_read_is_waited_for_and_its_epoch_counts() {
    for garbage in [&b""[..], b"{\"schema\": 1, \"epoch\"", &[0xff; 100]] {
        let place = Place::new();
        std::fs::write(place.path().join("41.json"), garbage).unwrap();
        let holder = held(place.acquire(&us(), 1));
        assert!(!holder.alive && holder.record.is_none());
        let mut watch = LeaseWatch::begin(holder.seen.clone(), boot(0));
        watch.observe(&holder.seen, boot(15));
        let Lease::Over(lapsed) = watch.observe(&holder.seen, boot(30)) else { panic!("the lease is over") };
        let owner = Ownership::acquire(place.owners(), &us(), &introduction(1), Some(&lapsed), at(30)).unwrap();
        assert_eq!(owner.epoch(), 42);
    }
}

#[test]
fn an_owner_that_ended_in_order_is_succeeded_at_once() {
    let place = Place::new();
    let first = place.acquire(&us(), 1).unwrap();
    let writer = first.writer();
    first.release(at(5)).unwrap();
    assert_eq!((first.beat(at(6)), first.permit(boot(6))), (Err(Lost::Released), Err(Lost::Released)));
    assert!(place.current().ended);
    let second = place.acquire(&us(), 2).unwrap();
    assert_eq!((second.epoch(), second.take_over(writer)), (2, TakeOver::InPlace { same_boot: true }));
}

#[test]
fn a_heartbeat_moves_the_counter_and_mends_a_stale_permit() {
    let place = Place::new();
    let owner = place.acquire(&us(), 1).unwrap();
    let first = place.current().counter;
    for beat in 1..=3 {
        owner.beat(at(beat * 10)).unwrap();
        let record = place.current();
        assert_eq!((record.counter, record.beat_at), (first + beat, at(beat * 10).wall));
    }
    owner.permit(boot(44)).unwrap();
    assert_eq!(owner.permit(boot(45)), Err(Lost::Stale { silent_for: Duration::from_secs(15) }));
    owner.beat(at(46)).unwrap();
    owner.permit(boot(46)).unwrap();
}

#[test]
fn a_record_that_was_tidied_away_comes_back_with_the_next_heartbeat() {
    let place = Place::new();
    let owner = place.acquire(&us(), 1).unwrap();
    std::fs::remove_file(place.path().join("1.json")).unwrap();
    assert_eq!(owner.permit(boot(1)), Err(Lost::Displaced));
    owner.beat(at(2)).unwrap();
    owner.permit(boot(2)).unwrap();
}

#[test]
fn of_two_that_got_one_epoch_none_overwrites_the_other() {
    let place = Place::new();
    let owner = place.acquire(&us(), 1).unwrap();
    place.forge(1, |record| record.writer = WriterId::new(1, 2));
    assert_eq!(owner.beat(at(1)), Err(Lost::Superseded { by: 1 }));
    assert_eq!(owner.permit(boot(1)), Err(Lost::Superseded { by: 1 }));
    assert_eq!(place.current().writer, WriterId::new(1, 2));
}

#[test]
fn a_link_that_worked_without_saying_so_is_our_own() {
    let place = Place::new();
    let record = Record::new(1, &us(), &introduction(3), at(0).wall);
    make(&place.owners(), &record).unwrap();
    assert_eq!(place.acquire(&us(), 3).unwrap().epoch(), 1);
    assert!(held(place.acquire(&us(), 4)).alive);
}

#[test]
fn the_last_records_are_kept_and_the_epoch_only_grows() {
    let place = Place::new();
    let last = 2 * RECORDS_KEPT as u64;
    for epoch in 1..=last {
        let owner = place.acquire(&us(), 1).unwrap();
        assert_eq!(owner.epoch(), epoch);
        owner.release(at(0)).unwrap();
    }
    let kept = last - RECORDS_KEPT as u64..=last;
    assert_eq!(record::epochs(&place.owners()).unwrap(), kept.collect::<Vec<_>>());
    std::fs::write(place.path().join(format!("{}.json", u64::MAX)), b"").unwrap();
    let holder = held(place.acquire(&us(), 1));
    let mut watch = LeaseWatch::begin(holder.seen.clone(), boot(0));
    watch.observe(&holder.seen, boot(15));
    let Lease::Over(lapsed) = watch.observe(&holder.seen, boot(30)) else { panic!("the lease is over") };
    let refused = Ownership::acquire(place.owners(), &us(), &introduction(1), Some(&lapsed), at(30));
    assert!(matches!(refused, Err(OwnerError::Exhausted)), "{refused:?}");
}
