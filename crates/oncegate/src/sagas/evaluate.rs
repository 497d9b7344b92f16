//! Where expressions are evaluated: small ones on the calling thread, all others on a bounded thread pool.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, Weak};

use oncegate_core::WorkspaceName;
use oncegate_saga::Steps;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many steps are evaluated on the thread of the request. They take less than a millisecond.
const STEPS_AT_ONCE: u64 = 10_000;
/// How many evaluations run at once if the number of processors is unknown.
const PLACES: usize = 2;

/// Limits the evaluations: as many at once as there are processors, and at most half of them for one workspace.
pub(super) struct Evaluations {
    places: Arc<Semaphore>,
    of_each: usize,
    workspaces: Mutex<HashMap<WorkspaceName, Weak<Semaphore>>>,
    steps_max: u64,
    out_of_steps: OutOfSteps,
}

/// Called with each workspace whose event exceeds the limit of steps.
pub(super) type OutOfSteps = Arc<dyn Fn(&WorkspaceName) + Send + Sync>;

/// Permits that an evaluation holds until it ends, even if its caller has left.
type Place = (OwnedSemaphorePermit, OwnedSemaphorePermit);

impl Evaluations {
    pub fn new(steps_max: u64, out_of_steps: OutOfSteps) -> Evaluations {
        let places = std::thread::available_parallelism().map_or(PLACES, NonZeroUsize::get).max(PLACES);
        Evaluations {
            places: Arc::new(Semaphore::new(places)),
            of_each: places / 2,
            workspaces: Mutex::default(),
            steps_max,
            out_of_steps,
        }
    }

    /// Evaluates within the limit of steps. A long evaluation starts again on the thread pool; `evaluate` has no effects.
    pub async fn run<T: Send + 'static>(
        &self,
        workspace: &WorkspaceName,
        is_large: bool,
        evaluate: impl Fn(&Steps) -> T + Send + 'static,
    ) -> T {
        if !is_large {
            let steps = Steps::up_to(self.steps_max.min(STEPS_AT_ONCE));
            let result = evaluate(&steps);
            if !steps.are_exceeded() {
                return result;
            }
            if self.steps_max <= STEPS_AT_ONCE {
                (self.out_of_steps)(workspace);
                return result;
            }
        }
        let place = self.place(workspace).await;
        let steps = Steps::up_to(self.steps_max);
        let evaluated = tokio::task::spawn_blocking(move || {
            let result = evaluate(&steps);
            drop(place);
            (result, steps.are_exceeded())
        });
        let (result, is_exceeded) = evaluated.await.expect("an evaluation does not panic, and the runtime is there");
        if is_exceeded {
            (self.out_of_steps)(workspace);
        }
        result
    }

    /// Acquires the workspace's own permit first, so that its queue does not delay other workspaces.
    async fn place(&self, workspace: &WorkspaceName) -> Place {
        let own = self.of_workspace(workspace).acquire_owned().await.expect("never closed");
        let place = self.places.clone().acquire_owned().await.expect("never closed");
        (own, place)
    }

    fn of_workspace(&self, workspace: &WorkspaceName) -> Arc<Semaphore> {
        let mut workspaces = self.workspaces.lock().expect("no holder of this lock panics");
        if let Some(places) = workspaces.get(workspace).and_then(Weak::upgrade) {
            return places;
        }
        workspaces.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.of_each));
        workspaces.insert(workspace.clone(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_workspace_has_half_of_the_places_and_another_is_not_held_up() {
        let evaluations = Evaluations::new(1, Arc::new(|_| ()));
        let name = |name: &str| WorkspaceName::new(name).expect("a good name");
        let (loud, quiet) = (name("loud"), name("quiet"));
        let mut held = vec![];
        for _ in 0..evaluations.of_each {
            held.push(evaluations.place(&loud).await);
        }
        let mut one_more = std::pin::pin!(evaluations.place(&loud));
        assert!(futures::poll!(&mut one_more).is_pending());
        let other = evaluations.place(&quiet).await;
        held.pop();
        drop(one_more.await);
        drop((held, other));
        drop(evaluations.place(&name("another")).await);
        assert_eq!(
            evaluations.workspaces.lock().expect("it is not poisoned").len(),
            1,
            "those that wait for nothing are forgotten"
        );
    }
}
