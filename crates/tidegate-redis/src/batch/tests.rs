use std::sync::Mutex;

use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::*;

/// How long an ask waits for its answer, and a call for its reply.
const WITHIN: Duration = Duration::from_millis(20);

/// An ask of one key, or of as many as it says.
struct Number(u32, usize);

impl Weighed for Number {
    fn keys(&self) -> usize {
        self.1
    }
}

/// A store that answers when it is let, and tells what it was asked in each call.
#[derive(Clone)]
struct ScriptedStore(Arc<Inner>);

struct Inner {
    calls: Mutex<Vec<Vec<u32>>>,
    answered: Mutex<Vec<u32>>,
    let_through: Semaphore,
    answers_max: usize,
}

impl ScriptedStore {
    fn new() -> (Self, Batch<Self>) {
        Self::answering_at_most(usize::MAX)
    }

    fn answering_at_most(answers_max: usize) -> (Self, Batch<Self>) {
        let (calls, answered, let_through) =
            (Mutex::default(), Mutex::default(), Semaphore::new(0));
        let caller = Self(Arc::new(Inner { calls, answered, let_through, answers_max }));
        (caller.clone(), Batch::start(Arc::new(caller), WITHIN))
    }

    fn calls(&self) -> Vec<Vec<u32>> {
        self.0.calls.lock().unwrap().clone()
    }

    /// All asks of calls that were let in time.
    fn answered(&self) -> Vec<u32> {
        self.0.answered.lock().unwrap().clone()
    }

    fn answer(&self, calls: usize) {
        self.0.let_through.add_permits(calls);
    }
}

impl Caller for ScriptedStore {
    type Ask = Number;
    type Told = u32;

    async fn call(&self, asks: Vec<Number>) -> Vec<u32> {
        let deadline = Instant::now() + WITHIN;
        let numbers: Vec<u32> = asks.iter().map(|ask| ask.0).collect();
        self.0.calls.lock().unwrap().push(numbers.clone());
        match timeout_at(deadline, self.0.let_through.acquire()).await {
            Ok(permit) => permit.unwrap().forget(),
            Err(_) => return Vec::new(),
        }
        self.0.answered.lock().unwrap().extend(&numbers);
        numbers.into_iter().take(self.0.answers_max).collect()
    }
}

type Asking = tokio::task::JoinHandle<Result<u32, Unanswered>>;

fn ask(batch: &Batch<ScriptedStore>, number: u32) -> Asking {
    ask_weighing(batch, number, 1)
}

fn ask_weighing(batch: &Batch<ScriptedStore>, number: u32, keys: usize) -> Asking {
    let batch = batch.clone();
    let deadline = Instant::now() + WITHIN;
    tokio::spawn(async move { batch.ask(Number(number, keys), deadline).await })
}

/// Lets everything run that can without time passing.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_ask_is_sent_at_once() {
    let (caller, batch) = ScriptedStore::new();
    let asking = ask(&batch, 1);
    settle().await;
    assert_eq!(caller.calls(), [[1]]);
    caller.answer(1);
    assert_eq!(asking.await.unwrap(), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn what_arrives_during_a_call_travels_together_when_its_reply_arrives() {
    let (caller, batch) = ScriptedStore::new();
    let mut asking = vec![ask(&batch, 0)];
    settle().await;
    asking.extend((1..=3).map(|number| ask(&batch, number)));
    settle().await;
    assert_eq!(caller.calls(), [vec![0]]);
    caller.answer(1);
    settle().await;
    assert_eq!(caller.calls(), [vec![0], vec![1, 2, 3]]);
    caller.answer(1);
    for (number, asking) in (0..).zip(asking) {
        assert_eq!(asking.await.unwrap(), Ok(number));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_holds_up_the_next_only_for_a_moment() {
    let (caller, batch) = ScriptedStore::new();
    let _asking = [ask(&batch, 0), ask(&batch, 1)];
    settle().await;
    assert_eq!(caller.calls(), [vec![0, 1]]);
    let _more = ask(&batch, 2);
    sleep(Duration::from_millis(2)).await;
    settle().await;
    assert_eq!(caller.calls(), [vec![0, 1], vec![2]]);
}

#[tokio::test(start_paused = true)]
async fn asks_enough_for_a_call_wait_for_no_reply() {
    let (caller, batch) = ScriptedStore::new();
    let _first = ask(&batch, 0);
    settle().await;
    for number in 1..ASKS_ENOUGH {
        _ = ask(&batch, u32::try_from(number).unwrap());
    }
    settle().await;
    assert_eq!(caller.calls().len(), 1);
    _ = ask(&batch, 99);
    settle().await;
    let sizes: Vec<usize> = caller.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, ASKS_ENOUGH]);
}

#[tokio::test(start_paused = true)]
async fn whoever_arrives_after_a_moment_takes_along_those_who_waited_for_it() {
    let (caller, batch) = ScriptedStore::new();
    let _asking = ask(&batch, 0);
    settle().await;
    let _waits = ask(&batch, 1);
    settle().await;
    // The runtime's timer is not that exact.
    tokio::time::advance(PATIENCE).await;
    let _arrives = ask(&batch, 2);
    settle().await;
    assert_eq!(caller.calls(), [vec![0], vec![1, 2]]);
}

#[tokio::test(start_paused = true)]
async fn only_a_few_calls_are_under_way_at_once() {
    let (caller, batch) = ScriptedStore::new();
    for number in 0..10 {
        _ = ask(&batch, number);
        sleep(Duration::from_millis(1)).await;
        settle().await;
    }
    assert_eq!(caller.calls().len(), CALLS_MAX);
}

#[tokio::test(start_paused = true)]
async fn more_calls_are_under_way_only_if_they_are_full() {
    let (caller, batch) = ScriptedStore::new();
    let _first = ask(&batch, 0);
    settle().await;
    let many = u32::try_from(ASKS_MAX * (CALLS_FULL_MAX + 2)).unwrap();
    let _more: Vec<Asking> = (0..many).map(|number| ask(&batch, number)).collect();
    sleep(Duration::from_millis(2)).await;
    settle().await;
    let sizes: Vec<usize> = caller.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes.len(), CALLS_FULL_MAX);
    assert!(sizes[1..].iter().all(|size| *size == ASKS_MAX), "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn those_who_were_just_answered_travel_with_the_next_call() {
    let (caller, batch) = ScriptedStore::new();
    let again = |number| {
        let batch = batch.clone();
        let deadline = Instant::now() + WITHIN;
        tokio::spawn(async move {
            batch.ask(Number(number, 1), deadline).await?;
            batch.ask(Number(number + 10, 1), deadline).await
        })
    };
    let _asking = [again(0), again(1)];
    settle().await;
    let _waits = ask(&batch, 2);
    settle().await;
    caller.answer(1);
    settle().await;
    assert_eq!(caller.calls(), [vec![0, 1], vec![2, 10, 11]]);
}

#[tokio::test(start_paused = true)]
async fn a_call_holds_a_bounded_number_of_asks() {
    let (caller, batch) = ScriptedStore::new();
    let _first = ask(&batch, 0);
    settle().await;
    let _more: Vec<Asking> = (1..=130).map(|number| ask(&batch, number)).collect();
    settle().await;
    let sizes: Vec<usize> = caller.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, ASKS_MAX, ASKS_MAX], "full calls do not wait");
}

#[tokio::test(start_paused = true)]
async fn a_call_holds_a_bounded_number_of_keys() {
    let (caller, batch) = ScriptedStore::new();
    let _first = ask(&batch, 0);
    settle().await;
    let _more: Vec<Asking> = (1..=40).map(|number| ask_weighing(&batch, number, 16)).collect();
    settle().await;
    let sizes: Vec<usize> = caller.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, KEYS_MAX / 16, KEYS_MAX / 16]);
}

#[tokio::test(start_paused = true)]
async fn an_ask_that_was_given_up_before_it_was_sent_is_never_sent() {
    let (caller, batch) = ScriptedStore::new();
    let _first = ask(&batch, 0);
    settle().await;
    let (given_up, kept) = (ask(&batch, 1), ask(&batch, 2));
    settle().await;
    given_up.abort();
    settle().await;
    caller.answer(2);
    assert_eq!(kept.await.unwrap(), Ok(2));
    assert_eq!(caller.calls(), [[0], [2]]);
}

#[tokio::test(start_paused = true)]
async fn an_ask_whose_deadline_passed_is_never_sent() {
    let (caller, batch) = ScriptedStore::new();
    for number in 0..4 {
        _ = ask(&batch, number);
        sleep(Duration::from_millis(2)).await;
    }
    settle().await;
    assert_eq!(caller.calls().len(), CALLS_MAX, "no further call may be made");
    let deadline = Instant::now() + Duration::from_millis(5);
    assert_eq!(batch.ask(Number(4, 1), deadline).await, Err(Unanswered::Late));
    caller.answer(5);
    assert_eq!(ask(&batch, 5).await.unwrap(), Ok(5));
    assert_eq!(caller.calls(), [[0], [1], [2], [3], [5]]);
}

#[tokio::test(start_paused = true)]
async fn an_ask_that_waited_for_half_of_its_time_makes_room_for_others() {
    let (caller, batch) = ScriptedStore::new();
    for number in 0..4 {
        _ = ask(&batch, number);
        sleep(Duration::from_millis(2)).await;
    }
    let waits = ask(&batch, 4);
    sleep(WITHIN / 2).await;
    let comes = ask(&batch, 5);
    settle().await;
    caller.answer(5);
    assert_eq!(waits.await.unwrap(), Err(Unanswered::Full));
    assert_eq!(comes.await.unwrap(), Ok(5));
    assert_eq!(caller.calls(), [[0], [1], [2], [3], [5]]);
}

#[tokio::test(start_paused = true)]
async fn the_room_of_those_who_waited_too_long_is_filled_with_others() {
    let (caller, batch) = ScriptedStore::new();
    for number in 0..4 {
        _ = ask(&batch, number);
        sleep(Duration::from_millis(2)).await;
    }
    let _wait: Vec<Asking> = (100..140).map(|number| ask(&batch, number)).collect();
    sleep(WITHIN / 2).await;
    let _come: Vec<Asking> = (200..264).map(|number| ask(&batch, number)).collect();
    settle().await;
    assert_eq!(caller.calls()[4..], [(200..264).collect::<Vec<u32>>()]);
}

#[tokio::test(start_paused = true)]
async fn a_call_has_its_time_however_long_its_asks_waited() {
    let (caller, batch) = ScriptedStore::new();
    for number in 0..4 {
        _ = ask(&batch, number);
        sleep(Duration::from_millis(2)).await;
    }
    let waits = ask(&batch, 4);
    sleep(Duration::from_millis(5)).await;
    // Those before have been under way for up to 13 ms; the one that waited is sent.
    caller.answer(1);
    settle().await;
    assert_eq!(caller.calls().len(), 5);
    assert_eq!(waits.await.unwrap(), Err(Unanswered::Late));
    sleep(Duration::from_millis(1)).await;
    caller.answer(1);
    settle().await;
    assert_eq!(caller.answered(), [0, 4], "after everybody else was given up");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let (_caller, batch) = ScriptedStore::new();
    let capacity = QUEUE.start() + CALLS_FULL_MAX * ASKS_MAX + ASKS_MAX;
    let asking: Vec<Asking> = (0..6000).map(|number| ask(&batch, number)).collect();
    settle().await;
    let refused = asking.iter().filter(|asking| asking.is_finished()).count();
    assert!(refused >= 6000 - capacity, "{refused}");
    assert!(batch.queued() <= *QUEUE.start());
    for asking in asking.into_iter().filter(Asking::is_finished) {
        assert_eq!(asking.await.unwrap(), Err(Unanswered::Full));
    }
}

#[test]
fn as_many_may_wait_as_could_be_answered() {
    let waiting = [1, 20, 80, 1_000].map(|ms| most_waiting(Duration::from_millis(ms)));
    assert_eq!(waiting, [4_096, 4_096, 10_000, 16_384]);
}

#[tokio::test(start_paused = true)]
async fn an_ask_without_an_answer_is_lost_and_the_others_are_not() {
    let (caller, batch) = ScriptedStore::answering_at_most(1);
    let asking = [ask(&batch, 0), ask(&batch, 1)];
    caller.answer(1);
    let [first, second] = asking;
    assert_eq!(first.await.unwrap(), Ok(0));
    assert_eq!(second.await.unwrap(), Err(Unanswered::Lost));
}
