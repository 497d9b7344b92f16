//! Medians, spreads and percentiles.

use serde_json::json;

use super::Measured;

/// Per second.
#[derive(Clone, Copy)]
pub struct Rate(pub f64);

/// In microseconds.
#[derive(Clone, Copy)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

impl Latency {
    pub fn of(mut micros: Vec<u32>) -> Option<Self> {
        micros.sort_unstable();
        let last = micros.len().checked_sub(1)?;
        let at = |share: f64| f64::from(micros[(last as f64 * share) as usize]);
        Some(Latency { p50: at(0.5), p99: at(0.99), p999: at(0.999) })
    }
}

pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 };
        Some(Spread { median, min, max })
    }
}

/// All measurements by name, in the order of the first round.
#[derive(Default)]
pub struct Figures(Vec<(&'static str, Vec<Measured>)>);

impl Figures {
    pub fn add(&mut self, measured: Measured) {
        match self.0.iter_mut().find(|(name, _)| *name == measured.name) {
            Some((_, rounds)) => rounds.push(measured),
            None => self.0.push((measured.name, vec![measured])),
        }
    }

    pub fn rows(&self) -> impl Iterator<Item = (&'static str, Spread, Option<Latency>)> {
        self.0.iter().map(|(name, rounds)| {
            let rates = rounds.iter().map(|measured| measured.rate.0).collect();
            let spread = Spread::of(rates).expect("a name is there because it was measured");
            let median = |of: fn(&Latency) -> f64| {
                Spread::of(rounds.iter().filter_map(|measured| measured.latency.as_ref().map(of)).collect())
                    .map(|spread| spread.median)
            };
            let latency = median(|latency| latency.p50)
                .zip(median(|latency| latency.p99))
                .zip(median(|latency| latency.p999))
                .map(|((p50, p99), p999)| Latency { p50, p99, p999 });
            (*name, spread, latency)
        })
    }

    /// Compares within each round, so that disturbances of the machine affect both figures.
    pub fn ratio(&self, figure: &str, beside: &str) -> Option<Spread> {
        let rounds = |wanted: &str| self.0.iter().find(|(name, _)| *name == wanted).map(|(_, rounds)| rounds);
        let pairs = rounds(figure)?.iter().zip(rounds(beside)?);
        Spread::of(pairs.map(|(figure, beside)| figure.rate.0 / beside.rate.0).collect())
    }

    pub fn to_json(&self) -> Vec<serde_json::Value> {
        self.rows()
            .map(|(name, rate, latency)| {
                json!({"name": name, "perSecond": rate.median, "spread": [rate.min, rate.max],
                       "latencyMicros": latency.map(|at| json!({"p50": at.p50, "p99": at.p99, "p999": at.p999}))})
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_taken_within_each_round_and_its_median_reported() {
        let mut figures = Figures::default();
        for (ours, limit) in [(50.0, 100.0), (10.0, 10.0), (30.0, 50.0)] {
            figures.add(Measured { name: "ours", rate: Rate(ours), latency: None });
            figures.add(Measured { name: "limit", rate: Rate(limit), latency: None });
        }
        let ratio = figures.ratio("ours", "limit").unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max), (0.6, 0.5, 1.0));
        assert!(figures.ratio("ours", "nothing").is_none());
    }

    #[test]
    fn percentiles_are_of_what_was_measured() {
        let latency = Latency::of((1..=1000).rev().collect()).unwrap();
        assert_eq!((latency.p50, latency.p99, latency.p999), (500.0, 990.0, 999.0));
        assert!(Latency::of(vec![]).is_none());
    }
}
