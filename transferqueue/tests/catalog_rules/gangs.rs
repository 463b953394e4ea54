//! Gangs: every row to exactly one rank, all ranks or none, and one lost rank undoes what all did.

use transferqueue::{
    LeaseId, RowId, Rows, SessionId,
    catalog::{Advice, Event, Refusal, command::*, definition::*},
};

use crate::catalog_support::{World, grpo, schedule};

/// GRPO whose actor has `ranks` ranks; a row's tokens are those of its prompt and its response.
fn gang(n: u32, ranks: u32, plan: Schedule) -> Definition {
    let mut def = grpo(n, plan);
    let lengths = vec!["prompt".to_owned(), "responses".to_owned()];
    def.tasks[3].gang = Some(Gang { ranks, lengths });
    def
}

struct Run {
    world: World,
    streamer: SessionId,
    ranks: Vec<SessionId>,
}

impl Run {
    /// Ranks have joined in order; nothing is claimed yet.
    fn new(definition: Definition) -> Self {
        let ranks = definition.tasks[3].gang.as_ref().unwrap().ranks;
        let mut world = World::new(definition);
        let streamer = world.session("streamer");
        world.offer(streamer, "policy", None).unwrap();
        let mut run = Self { world, streamer, ranks: Vec::new() };
        run.join(ranks);
        run
    }

    fn join(&mut self, ranks: u32) {
        self.ranks = (0..ranks).map(|rank| self.world.session(&format!("actor-{rank}"))).collect();
        for rank in 0..ranks {
            self.join_as(self.ranks[rank as usize], rank).unwrap();
        }
    }

    fn join_as(&mut self, session: SessionId, rank: u32) -> Result<Reply, Refusal> {
        let task = self.world.task("actor");
        self.world.call(session, Command::Join { task, rank })
    }

    /// Prompts come and are worked on up to the actor; responses of row r have `1 + 7 r mod 5` elements.
    fn stream(&mut self, prompts: u64) {
        let (world, s) = (&mut self.world, self.streamer);
        world.put(s, "prompts", prompts).unwrap();
        while let Ok(Reply::Claimed(claimed)) = world.claim(s, "rollout", 1) {
            let row = claimed.batch.rows.iter().next().unwrap();
            let column = world.column("samples", "responses");
            let bytes = 8 * (1 + 7 * row.0 as u32 % 5);
            let cells = vec![world.cells(column, claimed.batch.rows.clone(), bytes)];
            let (lease, rows) = (claimed.lease, claimed.batch.rows);
            world.call(s, Command::Commit { lease, rows, cells, notes: vec![], drops: vec![] }).unwrap();
        }
        for task in ["reward", "advantage"] {
            while let Ok(Reply::Claimed(claimed)) = world.claim(s, task, 100) {
                world.commit(s, task, claimed.lease, &claimed.batch.rows.clone()).unwrap();
            }
        }
    }

    fn claimed(&mut self, rank: usize) -> Claimed {
        self.world.claimed(self.ranks[rank], "actor", 1)
    }

    fn commit(&mut self, rank: usize, claimed: &Claimed) {
        if claimed.lease != LeaseId(0) {
            self.world.commit(self.ranks[rank], "actor", claimed.lease, &claimed.batch.rows).unwrap();
        }
    }

    fn waits(&mut self, rank: usize) -> String {
        self.world.waits(self.ranks[rank], "actor").to_string()
    }

    fn refused(&mut self, rank: usize) -> Refusal {
        self.world.claim(self.ranks[rank], "actor", 1).unwrap_err()
    }

    fn lose(&mut self, rank: usize) {
        self.world.own(Command::Lose(self.ranks[rank])).unwrap();
    }

    fn ready(&self) -> (u64, u64) {
        let views = self.world.catalog.state().tasks(transferqueue::Millis(self.world.now));
        let actor = views.iter().find(|view| view.task == "actor").unwrap();
        (actor.ready, actor.done)
    }
}

fn shares(run: &World) -> Vec<(u64, u64, Vec<ShareRows>)> {
    let cut = |event: &Event| match event {
        Event::SharesCut { cycle, index, shares, .. } => {
            Some((*cycle, *index, shares.iter().map(|share| share.minis.clone()).collect()))
        }
        _ => None,
    };
    run.log.iter().flat_map(|record| &record.events).filter_map(cut).collect()
}

type ShareRows = Vec<Rows>;

fn all(rows: &[&Claimed]) -> Vec<u64> {
    let mut all: Vec<u64> = rows.iter().flat_map(|claimed| claimed.batch.rows.iter()).map(|row| row.0).collect();
    all.sort_unstable();
    all
}

#[test]
fn ranks_get_disjoint_shares_that_are_the_whole_batch_and_hear_its_totals() {
    let mut run = Run::new(gang(4, 2, schedule(4, 2, 0, 1)));
    run.stream(4);
    for (index, rows) in [(0, 0..8), (1, 8..16)] {
        let (one, zero) = (run.claimed(1), run.claimed(0));
        assert_eq!(all(&[&zero, &one]), rows.clone().collect::<Vec<u64>>());
        assert_eq!((zero.batch.rows.len(), one.batch.rows.len()), (4, 4));
        // Prompts have one element, responses those that `stream` gives them.
        let tokens = |claimed: &Claimed| claimed.batch.rows.iter().map(|row| 2 + 7 * row.0 % 5).sum::<u64>();
        assert!(tokens(&zero).abs_diff(tokens(&one)) <= 1, "{zero:?} {one:?}");
        let share = |rank, claimed: &Claimed| {
            let totals = vec![Totals { rows: 8, tokens: rows.clone().map(|row| 2 + 7 * row % 5).sum() }];
            let (last, share) = (index == 1, Some(Share { rank, ranks: 2, epoch: 0, totals }));
            assert_eq!(claimed.cut, Some(CutRef { cycle: 0, index, sizes: vec![4], last, share }));
        };
        share(0, &zero);
        share(1, &one);
        run.commit(0, &zero);
        run.commit(1, &one);
    }
}

#[test]
fn shares_do_not_depend_on_who_asks_first() {
    let logs: Vec<_> = [[0, 1, 2], [2, 1, 0], [1, 0, 2]]
        .iter()
        .map(|order| {
            let mut run = Run::new(gang(3, 3, schedule(3, 3, 0, 1)));
            run.stream(3);
            for _ in 0..3 {
                let claims: Vec<_> = order.iter().map(|&rank| (rank, run.claimed(rank))).collect();
                claims.iter().rev().for_each(|(rank, claimed)| run.commit(*rank, claimed));
            }
            shares(&run.world)
        })
        .collect();
    assert_eq!(logs[0].len(), 3);
    assert_eq!(logs[0], logs[1]);
    assert_eq!(logs[0], logs[2]);
}

#[test]
fn a_cycle_is_shared_mini_batch_by_mini_batch() {
    let mut def = gang(2, 2, schedule(4, 2, 0, 1));
    def.tasks[3].per = Grain::Cycle;
    let mut run = Run::new(def);
    run.stream(4);
    let (zero, one) = (run.claimed(0), run.claimed(1));
    assert_eq!(all(&[&zero, &one]), (0..8).collect::<Vec<u64>>());
    for claimed in [&zero, &one] {
        let cut = claimed.cut.as_ref().unwrap();
        assert_eq!((cut.sizes.as_slice(), cut.share.as_ref().unwrap().totals.len()), ([2, 2].as_slice(), 2));
        let first: Vec<u64> = claimed.batch.rows.iter().take(2).map(|row| row.0).collect();
        assert!(first.iter().all(|row| *row < 4), "the first mini-batch comes first: {claimed:?}");
    }
}

#[test]
fn nobody_begins_before_every_rank_has_joined_or_runs_ahead_of_one_that_has_not_asked() {
    let mut run = Run::new(gang(2, 2, schedule(2, 2, 0, 1)));
    let alone = run.world.session("stranger");
    let refused = run.world.claim(alone, "actor", 1).unwrap_err().to_string();
    assert!(refused.contains("is none of its 2 ranks; join it first"), "{refused}");
    run.stream(2);
    let zero = run.claimed(0);
    run.commit(0, &zero);
    let text = run.waits(0);
    assert!(text.contains("rank 1 has not taken its share"), "{text}");
    let one = run.claimed(1);
    // The next batch may be taken while the other rank still holds the one before: both hear of it.
    let next = run.claimed(0);
    assert_eq!(next.cut.as_ref().unwrap().index, 1);
    run.commit(1, &one);
    assert_eq!(run.claimed(1).cut.unwrap().index, 1);

    let mut late = Run::new(gang(2, 2, schedule(1, 1, 0, 1)));
    late.stream(1);
    late.lose(1);
    let first = late.ranks[0];
    late.join_as(first, 0).unwrap();
    let text = late.waits(0);
    assert!(text.contains("rank 1 has not joined"), "{text}");
    let again = late.world.session("actor-1");
    late.join_as(again, 1).unwrap();
    late.claimed(0);
}

#[test]
fn a_lost_rank_returns_every_share_and_undoes_what_all_did_in_the_cycle() {
    let mut run = Run::new(gang(2, 2, schedule(4, 2, 0, 1)));
    run.stream(4);
    let (zero, one) = (run.claimed(0), run.claimed(1));
    run.commit(0, &zero);
    run.commit(1, &one);
    let (second, _) = (run.claimed(0), run.claimed(1));
    assert_eq!(run.ready(), (0, 4));
    run.lose(1);
    assert_eq!(run.ready(), (8, 0), "all rows of the cycle are there again");
    let rows = second.batch.rows.clone();
    let commit = Command::Commit { lease: second.lease, rows, cells: vec![], notes: vec![], drops: vec![] };
    assert!(matches!(run.world.call(run.ranks[0], commit), Err(Refusal::GangEnded { .. })), "a late commit");
    let renew = Command::Renew { lease: second.lease, progress: 1 };
    assert!(matches!(run.world.call(run.ranks[0], renew), Err(Refusal::GangEnded { .. })), "a late sign of life");
    let none = Command::Renew { lease: second.lease, progress: 1 };
    assert!(matches!(run.world.call(run.streamer, none), Err(Refusal::LeaseEnded { .. })), "no rank: as ever");
    let model = run.world.model("policy");
    let offer = Command::Offer { model, cycle: Some(0), weights: None, state: None };
    assert!(matches!(run.world.call(run.ranks[0], offer), Err(Refusal::GangEnded { .. })), "also a late offer");
    let refused = run.refused(0);
    assert_eq!(refused.advice(), Advice::BeginAgain);
    assert!(refused.to_string().contains("rank 1 (actor-1): the session that held it was lost"), "{refused}");
    run.join(2);
    let (zero_again, one_again) = (run.claimed(0), run.claimed(1));
    assert_eq!(zero_again.batch.rows, zero.batch.rows, "the same shares");
    assert_eq!(one_again.batch.rows, one.batch.rows);
    assert_eq!(zero_again.cut.unwrap().share.unwrap().epoch, 1);
    let attempts: Vec<_> = run
        .world
        .log
        .iter()
        .flat_map(|record| &record.events)
        .filter_map(|event| match event {
            Event::RowsReturned { why, .. } => Some(format!("{why:?}")),
            _ => None,
        })
        .collect();
    assert_eq!(attempts, ["SessionEnded", "GangEnded"], "only the lost rank's rows count an attempt");
}

#[test]
fn an_expired_lease_or_rows_given_back_end_the_gang_too() {
    for end in ["expired", "released", "failed", "left"] {
        let mut run = Run::new(gang(2, 2, schedule(2, 1, 0, 1)));
        run.stream(2);
        let (zero, one) = (run.claimed(0), run.claimed(1));
        let rows = Rows::run(one.batch.rows.iter().next().unwrap(), 1);
        let lease = one.lease;
        match end {
            "expired" => {
                for progress in 1..9 {
                    run.world.pass(9_000);
                    let heartbeats = [run.ranks[0], run.ranks[1], run.streamer];
                    heartbeats.iter().for_each(|s| _ = run.world.call(*s, Command::Heartbeat).unwrap());
                    if run.world.call(run.ranks[0], Command::Renew { lease: zero.lease, progress }).is_err() {
                        break;
                    }
                }
            }
            "released" => _ = run.world.call(run.ranks[1], Command::Release { lease, rows }).unwrap(),
            "failed" => _ = run.world.call(run.ranks[1], Command::Fail { lease, rows, error: "odd".into() }).unwrap(),
            _ => _ = run.world.call(run.ranks[1], Command::CloseSession).unwrap(),
        }
        assert_eq!(run.ready(), (4, 0), "{end}");
        let why = run.refused(0).to_string();
        let said = match end {
            "expired" => "its lease expired",
            "failed" => "odd",
            _ => "gave rows back",
        };
        assert!(why.contains("rank 1 (actor-1)") && why.contains(said), "{end}: {why}");
    }
}

#[test]
fn rank_0_offers_for_all_once_every_share_is_committed() {
    let mut run = Run::new(gang(2, 2, schedule(2, 1, 0, 2)));
    run.stream(4);
    let (zero, one) = (run.claimed(0), run.claimed(1));
    run.commit(0, &zero);
    let early = run.world.offer(run.ranks[0], "policy", Some(0)).unwrap_err().to_string();
    assert!(early.contains("2 rows of cycle 0 are not committed"), "{early}");
    run.commit(1, &one);
    let text = run.waits(1);
    assert!(text.contains("which has not offered version 1"), "{text}");
    let model = run.world.model("policy");
    let offer = Command::Offer { model, cycle: Some(0), weights: None, state: None };
    let other = run.world.call(run.ranks[1], offer.clone()).unwrap_err().to_string();
    assert!(other.contains("rank 1 of task `actor` offers cycle 0; rank 0 offers for all ranks"), "{other}");
    assert_eq!(run.world.call(run.ranks[0], offer), Ok(Reply::Offered(Some(1))));
    assert_eq!(run.world.ledger("actor").consumed, 4);
    // The next cycle goes on in the same life.
    run.stream(0);
    let (zero, one) = (run.claimed(0), run.claimed(1));
    assert_eq!((zero.cut.unwrap().cycle, one.cut.unwrap().cycle), (1, 1));
}

#[test]
fn what_was_offered_stays_trained_when_a_rank_is_lost_before_the_publication() {
    let mut def = gang(2, 2, schedule(2, 1, 0, 1));
    def.models.push(Model { name: "critic".into(), keep_initial: false });
    let mut critic = def.tasks[3].clone();
    (critic.name, critic.gang) = ("critic".into(), None);
    critic.trains = Some(Trains { model: "critic".into(), from_cycle: 0 });
    def.tasks.push(critic);
    let mut run = Run::new(def);
    run.world.offer(run.streamer, "critic", None).unwrap();
    run.stream(2);
    let (zero, one) = (run.claimed(0), run.claimed(1));
    run.commit(0, &zero);
    run.commit(1, &one);
    assert_eq!(run.world.offer(run.ranks[0], "policy", Some(0)), Ok(Reply::Offered(None)));
    run.lose(1);
    run.lose(0);
    assert_eq!(run.ready(), (0, 4));
    run.world.work(run.streamer, "critic", 1);
    assert_eq!(run.world.offer(run.streamer, "critic", Some(0)), Ok(Reply::Offered(Some(1))));
    assert_eq!(run.world.ledger("actor").consumed, 4);
}

#[test]
fn a_batch_smaller_than_the_gang_leaves_ranks_with_nothing_to_hold() {
    let mut run = Run::new(gang(1, 3, schedule(2, 1, 0, 1)));
    run.stream(2);
    let claims: Vec<Claimed> = (0..3).map(|rank| run.claimed(rank)).collect();
    let held: Vec<u64> = claims.iter().map(|claimed| claimed.batch.rows.len()).collect();
    assert_eq!(held, [1, 1, 0]);
    assert_eq!(claims[2].lease, LeaseId(0));
    assert_eq!(claims[2].cut.as_ref().unwrap().share.as_ref().unwrap().totals[0].rows, 2);
    // Also a rank that holds nothing holds the training of the others.
    claims.iter().enumerate().for_each(|(rank, claimed)| run.commit(rank, claimed));
    assert_eq!(run.ready(), (0, 2));
    run.lose(2);
    assert_eq!(run.ready(), (2, 0));
}

#[test]
fn when_every_row_of_a_cycle_was_dropped_all_ranks_are_told_once_to_end_it() {
    let mut run = Run::new(gang(2, 2, schedule(1, 1, 0, 1)));
    run.stream(1);
    let partition = run.world.partition("samples");
    let rows = DropRows { rows: Rows::run(RowId(0), 2), reason: "filtered".into() };
    run.world.call(run.streamer, Command::Drop { partition, rows }).unwrap();
    for rank in [1, 0] {
        let claimed = run.claimed(rank);
        assert!(claimed.batch.rows.is_empty() && claimed.cut.unwrap().last);
    }
    run.waits(1);
    run.waits(0);
    assert_eq!(run.world.offer(run.ranks[0], "policy", Some(0)), Ok(Reply::Offered(Some(1))));
    assert_eq!(run.world.claim(run.ranks[1], "actor", 1), Ok(Reply::Ended));
}

#[test]
fn a_gang_that_lost_a_rank_still_ends_a_cycle_whose_rows_were_all_dropped_meanwhile() {
    let mut run = Run::new(gang(2, 2, schedule(1, 1, 0, 1)));
    run.stream(1);
    run.lose(1);
    let partition = run.world.partition("samples");
    let rows = DropRows { rows: Rows::run(RowId(0), 2), reason: "filtered".into() };
    run.world.call(run.streamer, Command::Drop { partition, rows }).unwrap();
    assert!(matches!(run.refused(0), Refusal::GangEnded { .. }));
    run.ranks = ["actor-0", "actor-1"].map(|name| run.world.session(name)).into();
    run.join_as(run.ranks[0], 0).unwrap();
    let waits = run.waits(0);
    assert!(waits.contains("rank 1"), "nothing has ended while the cycle is not published: {waits}");
    run.join_as(run.ranks[1], 1).unwrap();
    for rank in [1, 0] {
        let claimed = run.claimed(rank);
        assert!(claimed.batch.rows.is_empty() && claimed.cut.unwrap().last);
    }
    assert_eq!(run.world.offer(run.ranks[0], "policy", Some(0)), Ok(Reply::Offered(Some(1))));
    assert_eq!(run.world.claim(run.ranks[1], "actor", 1), Ok(Reply::Ended));
}

#[test]
fn rows_dropped_before_a_rank_takes_its_share_are_not_given_to_it() {
    let mut run = Run::new(gang(4, 2, schedule(1, 1, 0, 1)));
    run.stream(1);
    let zero = run.claimed(0);
    let others: Vec<u64> = (0..4).filter(|row| !zero.batch.rows.contains(RowId(*row))).collect();
    let partition = run.world.partition("samples");
    let rows = DropRows { rows: Rows::run(RowId(others[0]), 1), reason: "filtered".into() };
    run.world.call(run.streamer, Command::Drop { partition, rows }).unwrap();
    let one = run.claimed(1);
    assert_eq!(one.batch.rows, Rows::run(RowId(others[1]), 1));
    assert_eq!(one.cut.as_ref().unwrap().sizes, [1]);
    run.commit(0, &zero);
    run.commit(1, &one);
    assert_eq!(run.world.offer(run.ranks[0], "policy", Some(0)), Ok(Reply::Offered(Some(1))));
}

#[test]
fn a_rank_is_held_by_one_worker_and_every_life_joins_anew() {
    let mut run = Run::new(gang(2, 2, schedule(1, 1, 0, 1)));
    assert_eq!(run.join_as(run.ranks[0], 0), Ok(Reply::Joined { epoch: 0 }), "again does no harm");
    let other = run.world.session("other");
    let taken = run.join_as(other, 1).unwrap_err().to_string();
    assert!(taken.contains("rank 1 is held by session 3 (actor-1)"), "{taken}");
    let both = run.join_as(run.ranks[0], 1).unwrap_err().to_string();
    assert!(both.contains("is rank 0 and asks to be rank 1"), "{both}");
    let beyond = run.join_as(other, 2).unwrap_err().to_string();
    assert!(beyond.contains("rank 2 of 2; ranks count from 0"), "{beyond}");
    let task = run.world.task("rollout");
    let none = run.world.call(other, Command::Join { task, rank: 0 }).unwrap_err().to_string();
    assert!(none.contains("declares no gang"), "{none}");
    run.lose(0);
    assert_eq!(run.join_as(other, 0), Ok(Reply::Joined { epoch: 1 }));
    assert_eq!(run.refused(1).advice(), Advice::BeginAgain);
    run.world.restore();
    let next = run.world.session("next");
    assert_eq!(run.join_as(next, 0), Ok(Reply::Joined { epoch: 2 }));
}

#[test]
fn a_gang_is_of_a_training_task_and_counts_lengths_of_what_it_reads() {
    let refused = |change: &dyn Fn(&mut Task)| {
        let mut def = gang(1, 2, schedule(1, 1, 0, 1));
        change(&mut def.tasks[3]);
        transferqueue::catalog::Catalog::create(def, 1, transferqueue::Millis(0)).unwrap_err().to_string()
    };
    let none = refused(&|task| task.gang.as_mut().unwrap().ranks = 0);
    assert!(none.contains("has a gang of 0 ranks; from 1 to 1024"), "{none}");
    let strange = refused(&|task| task.gang.as_mut().unwrap().lengths = vec!["scores".into()]);
    assert!(strange.contains("counts lengths of `scores`") && strange.contains("`responses`"), "{strange}");
    let mut def = gang(1, 2, schedule(1, 1, 0, 1));
    def.tasks[1].gang = Some(Gang { ranks: 2, lengths: vec![] });
    let idle = transferqueue::catalog::Catalog::create(def, 1, transferqueue::Millis(0)).unwrap_err().to_string();
    assert!(idle.contains("task `reward` declares a gang but trains no model"), "{idle}");
}
