use std::sync::Mutex;

use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::*;

/// How long a command waits for its answer, and a call for its reply.
const WITHIN: Duration = Duration::from_millis(20);

/// A command of one key, or of as many as it says.
struct Number(u32, usize);

/// A store that answers when it is let, and tells which commands each call had.
#[derive(Clone)]
struct ScriptedStore(Arc<Inner>);

struct Inner {
    calls: Mutex<Vec<Vec<u32>>>,
    answered: Mutex<Vec<u32>>,
    let_through: Semaphore,
    answers_max: usize,
}

impl ScriptedStore {
    fn new() -> (Self, Arc<Batcher<Self>>) {
        Self::answering_at_most(usize::MAX)
    }

    fn answering_at_most(answers_max: usize) -> (Self, Arc<Batcher<Self>>) {
        let (calls, answered, let_through) =
            (Mutex::default(), Mutex::default(), Semaphore::new(0));
        let handler = Self(Arc::new(Inner { calls, answered, let_through, answers_max }));
        (handler.clone(), Arc::new(Batcher::start(Arc::new(handler), WITHIN)))
    }

    fn calls(&self) -> Vec<Vec<u32>> {
        self.0.calls.lock().unwrap().clone()
    }

    /// All commands of calls that were let in time.
    fn answered(&self) -> Vec<u32> {
        self.0.answered.lock().unwrap().clone()
    }

    fn answer(&self, calls: usize) {
        self.0.let_through.add_permits(calls);
    }
}

impl BatchHandler for ScriptedStore {
    type Command = Number;
    type Response = u32;

    fn keys_of(command: &Number) -> usize {
        command.1
    }

    async fn handle(&self, commands: Vec<Number>) -> Vec<u32> {
        let deadline = Instant::now() + WITHIN;
        let numbers: Vec<u32> = commands.iter().map(|command| command.0).collect();
        self.0.calls.lock().unwrap().push(numbers.clone());
        match timeout_at(deadline, self.0.let_through.acquire()).await {
            Ok(permit) => permit.unwrap().forget(),
            Err(_) => return Vec::new(),
        }
        self.0.answered.lock().unwrap().extend(&numbers);
        numbers.into_iter().take(self.0.answers_max).collect()
    }
}

type Sending = tokio::task::JoinHandle<Result<u32, BatchError>>;

fn send(batch: &Arc<Batcher<ScriptedStore>>, number: u32) -> Sending {
    send_weighing(batch, number, 1)
}

fn send_weighing(batch: &Arc<Batcher<ScriptedStore>>, number: u32, keys: usize) -> Sending {
    let batch = Arc::clone(batch);
    let deadline = Instant::now() + WITHIN;
    tokio::spawn(async move { batch.send(Number(number, keys), deadline).await })
}

/// Lets everything run that can without time passing.
async fn settle() {
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lone_command_is_sent_at_once() {
    let (handler, batch) = ScriptedStore::new();
    let sending = send(&batch, 1);
    settle().await;
    assert_eq!(handler.calls(), [[1]]);
    handler.answer(1);
    assert_eq!(sending.await.unwrap(), Ok(1));
}

#[tokio::test(start_paused = true)]
async fn what_arrives_during_a_call_travels_together_when_its_reply_arrives() {
    let (handler, batch) = ScriptedStore::new();
    let mut sending = vec![send(&batch, 0)];
    settle().await;
    sending.extend((1..=3).map(|number| send(&batch, number)));
    settle().await;
    assert_eq!(handler.calls(), [vec![0]]);
    handler.answer(1);
    settle().await;
    assert_eq!(handler.calls(), [vec![0], vec![1, 2, 3]]);
    handler.answer(1);
    for (number, sending) in (0..).zip(sending) {
        assert_eq!(sending.await.unwrap(), Ok(number));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_holds_up_the_next_only_for_a_moment() {
    let (handler, batch) = ScriptedStore::new();
    let _sending = [send(&batch, 0), send(&batch, 1)];
    settle().await;
    assert_eq!(handler.calls(), [vec![0, 1]]);
    let _more = send(&batch, 2);
    sleep(Duration::from_millis(2)).await;
    settle().await;
    assert_eq!(handler.calls(), [vec![0, 1], vec![2]]);
}

#[tokio::test(start_paused = true)]
async fn commands_enough_for_a_call_wait_for_no_reply() {
    let (handler, batch) = ScriptedStore::new();
    let _first = send(&batch, 0);
    settle().await;
    for number in 1..COMMANDS_ENOUGH {
        _ = send(&batch, u32::try_from(number).unwrap());
    }
    settle().await;
    assert_eq!(handler.calls().len(), 1);
    _ = send(&batch, 99);
    settle().await;
    let sizes: Vec<usize> = handler.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, COMMANDS_ENOUGH]);
}

#[tokio::test(start_paused = true)]
async fn whoever_arrives_after_a_moment_takes_along_those_who_waited_for_it() {
    let (handler, batch) = ScriptedStore::new();
    let _sending = send(&batch, 0);
    settle().await;
    let _waits = send(&batch, 1);
    settle().await;
    // The runtime's timer is not that exact.
    tokio::time::advance(PATIENCE).await;
    let _arrives = send(&batch, 2);
    settle().await;
    assert_eq!(handler.calls(), [vec![0], vec![1, 2]]);
}

#[tokio::test(start_paused = true)]
async fn only_a_few_calls_are_under_way_at_once() {
    let (handler, batch) = ScriptedStore::new();
    for number in 0..10 {
        _ = send(&batch, number);
        sleep(Duration::from_millis(1)).await;
        settle().await;
    }
    assert_eq!(handler.calls().len(), CALLS_MAX);
}

#[tokio::test(start_paused = true)]
async fn more_calls_are_under_way_only_if_they_are_full() {
    let (handler, batch) = ScriptedStore::new();
    let _first = send(&batch, 0);
    settle().await;
    let many = u32::try_from(COMMANDS_MAX * (CALLS_FULL_MAX + 2)).unwrap();
    let _more: Vec<Sending> = (0..many).map(|number| send(&batch, number)).collect();
    sleep(Duration::from_millis(2)).await;
    settle().await;
    let sizes: Vec<usize> = handler.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes.len(), CALLS_FULL_MAX);
    assert!(sizes[1..].iter().all(|size| *size == COMMANDS_MAX), "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn those_who_were_just_answered_travel_with_the_next_call() {
    let (handler, batch) = ScriptedStore::new();
    let again = |number| {
        let batch = Arc::clone(&batch);
        let deadline = Instant::now() + WITHIN;
        tokio::spawn(async move {
            batch.send(Number(number, 1), deadline).await?;
            batch.send(Number(number + 10, 1), deadline).await
        })
    };
    let _sending = [again(0), again(1)];
    settle().await;
    let _waits = send(&batch, 2);
    settle().await;
    handler.answer(1);
    settle().await;
    assert_eq!(handler.calls(), [vec![0, 1], vec![2, 10, 11]]);
}

#[tokio::test(start_paused = true)]
async fn a_call_holds_a_bounded_number_of_commands() {
    let (handler, batch) = ScriptedStore::new();
    let _first = send(&batch, 0);
    settle().await;
    let _more: Vec<Sending> = (1..=130).map(|number| send(&batch, number)).collect();
    settle().await;
    let sizes: Vec<usize> = handler.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, COMMANDS_MAX, COMMANDS_MAX], "full calls do not wait");
}

#[tokio::test(start_paused = true)]
async fn a_call_holds_a_bounded_number_of_keys() {
    let (handler, batch) = ScriptedStore::new();
    let _first = send(&batch, 0);
    settle().await;
    let _more: Vec<Sending> = (1..=40).map(|number| send_weighing(&batch, number, 16)).collect();
    settle().await;
    let sizes: Vec<usize> = handler.calls().iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, KEYS_MAX / 16, KEYS_MAX / 16]);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_was_given_up_before_it_was_sent_is_never_sent() {
    let (handler, batch) = ScriptedStore::new();
    let _first = send(&batch, 0);
    settle().await;
    let (given_up, kept) = (send(&batch, 1), send(&batch, 2));
    settle().await;
    given_up.abort();
    settle().await;
    handler.answer(2);
    assert_eq!(kept.await.unwrap(), Ok(2));
    assert_eq!(handler.calls(), [[0], [2]]);
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_deadline_passed_is_never_sent() {
    let (handler, batch) = ScriptedStore::new();
    for number in 0..4 {
        _ = send(&batch, number);
        sleep(Duration::from_millis(2)).await;
    }
    settle().await;
    assert_eq!(handler.calls().len(), CALLS_MAX, "no further call may be made");
    let deadline = Instant::now() + Duration::from_millis(5);
    assert_eq!(batch.send(Number(4, 1), deadline).await, Err(BatchError::Late));
    handler.answer(5);
    assert_eq!(send(&batch, 5).await.unwrap(), Ok(5));
    assert_eq!(handler.calls(), [[0], [1], [2], [3], [5]]);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_waited_for_half_of_its_time_makes_room_for_others() {
    let (handler, batch) = ScriptedStore::new();
    for number in 0..4 {
        _ = send(&batch, number);
        sleep(Duration::from_millis(2)).await;
    }
    let waits = send(&batch, 4);
    sleep(WITHIN / 2).await;
    let comes = send(&batch, 5);
    settle().await;
    handler.answer(5);
    assert_eq!(waits.await.unwrap(), Err(BatchError::Full));
    assert_eq!(comes.await.unwrap(), Ok(5));
    assert_eq!(handler.calls(), [[0], [1], [2], [3], [5]]);
}

#[tokio::test(start_paused = true)]
async fn the_room_of_those_who_waited_too_long_is_filled_with_others() {
    let (handler, batch) = ScriptedStore::new();
    for number in 0..4 {
        _ = send(&batch, number);
        sleep(Duration::from_millis(2)).await;
    }
    let _wait: Vec<Sending> = (100..140).map(|number| send(&batch, number)).collect();
    sleep(WITHIN / 2).await;
    let _come: Vec<Sending> = (200..264).map(|number| send(&batch, number)).collect();
    settle().await;
    assert_eq!(handler.calls()[4..], [(200..264).collect::<Vec<u32>>()]);
}

#[tokio::test(start_paused = true)]
async fn a_call_has_its_time_however_long_its_commands_waited() {
    let (handler, batch) = ScriptedStore::new();
    for number in 0..4 {
        _ = send(&batch, number);
        sleep(Duration::from_millis(2)).await;
    }
    let waits = send(&batch, 4);
    sleep(Duration::from_millis(5)).await;
    // Those before have been under way for up to 13 ms; the one that waited is sent.
    handler.answer(1);
    settle().await;
    assert_eq!(handler.calls().len(), 5);
    assert_eq!(waits.await.unwrap(), Err(BatchError::Late));
    sleep(Duration::from_millis(1)).await;
    handler.answer(1);
    settle().await;
    assert_eq!(handler.answered(), [0, 4], "after everybody else was given up");
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_at_once() {
    let (_handler, batch) = ScriptedStore::new();
    let capacity = QUEUE.start() + CALLS_FULL_MAX * COMMANDS_MAX + COMMANDS_MAX;
    let sending: Vec<Sending> = (0..6000).map(|number| send(&batch, number)).collect();
    settle().await;
    let refused = sending.iter().filter(|sending| sending.is_finished()).count();
    assert!(refused >= 6000 - capacity, "{refused}");
    assert!(batch.queued() <= *QUEUE.start());
    for sending in sending.into_iter().filter(Sending::is_finished) {
        assert_eq!(sending.await.unwrap(), Err(BatchError::Full));
    }
}

#[test]
fn as_many_may_wait_as_could_be_answered() {
    let waiting = [1, 20, 80, 1_000].map(|ms| queue_length(Duration::from_millis(ms)));
    assert_eq!(waiting, [4_096, 4_096, 10_000, 16_384]);
}

#[tokio::test(start_paused = true)]
async fn a_command_without_an_answer_is_lost_and_the_others_are_not() {
    let (handler, batch) = ScriptedStore::answering_at_most(1);
    let sending = [send(&batch, 0), send(&batch, 1)];
    handler.answer(1);
    let [first, second] = sending;
    assert_eq!(first.await.unwrap(), Ok(0));
    assert_eq!(second.await.unwrap(), Err(BatchError::Lost));
}
