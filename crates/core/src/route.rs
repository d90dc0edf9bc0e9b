//! Route tables: regions over shape facts, first match wins.
//!
//! An architecture crate states, per operation, which schedule serves which shapes as a constant
//! table. The planner asks it with the facts of a problem; the documentation prints it.

use std::fmt;

/// A named whole number that a problem and a device determine: `batch`, `capacity`, `sm_count`, ...
pub type FactName = &'static str;

/// An interval of one fact, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Fact.
    pub fact: FactName,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
}

impl Bound {
    /// `fact <= max`.
    pub const fn up_to(fact: FactName, max: u64) -> Bound {
        Bound { fact, min: 0, max }
    }

    /// `fact >= min`.
    pub const fn from(fact: FactName, min: u64) -> Bound {
        Bound { fact, min, max: u64::MAX }
    }

    /// `fact == value`.
    pub const fn equal(fact: FactName, value: u64) -> Bound {
        Bound { fact, min: value, max: value }
    }

    /// `min <= fact <= max`.
    pub const fn within(fact: FactName, min: u64, max: u64) -> Bound {
        Bound { fact, min, max }
    }

    /// Whether the facts satisfy it. A bound on an absent fact does not hold.
    pub fn holds(&self, facts: &Facts) -> bool {
        facts.get(self.fact).is_some_and(|value| (self.min..=self.max).contains(&value))
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (min, max) if min == max => write!(f, "{} = {min}", self.fact),
            (0, max) => write!(f, "{} <= {max}", self.fact),
            (min, u64::MAX) => write!(f, "{} >= {min}", self.fact),
            (min, max) => write!(f, "{min} <= {} <= {max}", self.fact),
        }
    }
}

/// One row: where it applies and what it chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<T: 'static> {
    /// Every bound must hold; an empty list always does.
    pub when: &'static [Bound],
    /// The choice.
    pub then: T,
}

impl<T> Route<T> {
    /// The first bound that does not hold.
    pub fn objection(&self, facts: &Facts) -> Option<&'static Bound> {
        self.when.iter().find(|bound| !bound.holds(facts))
    }
}

/// What a row of some table says to a problem, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Considered {
    /// What the table chooses: `GEMM`.
    pub table: &'static str,
    /// Conditions of the row.
    pub when: &'static [Bound],
    /// The schedule that it leads to.
    pub schedule: &'static str,
    /// What it decides besides; empty for nothing.
    pub details: String,
    /// Why it does not serve the problem; the first row of a table without an objection is taken.
    pub objection: Option<String>,
}

/// The facts of one problem on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts(pub Vec<(FactName, u64)>);

impl Facts {
    fn get(&self, fact: FactName) -> Option<u64> {
        self.0.iter().find(|(name, _)| *name == fact).map(|(_, value)| *value)
    }
}

/// The first row whose bounds all hold.
pub fn choose<'t, T>(table: &'t [Route<T>], facts: &Facts) -> Option<&'t Route<T>> {
    table.iter().find(|route| route.objection(facts).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Route<&str>] = &[
        Route { when: &[Bound::up_to("capacity", 64), Bound::equal("batch", 1)], then: "short" },
        Route { when: &[Bound::within("batch", 1, 2)], then: "few" },
        Route { when: &[Bound::from("pages", 1)], then: "paged" },
        Route { when: &[], then: "any" },
    ];

    fn ask(batch: u64, capacity: u64) -> &'static str {
        choose(TABLE, &Facts(vec![("batch", batch), ("capacity", capacity)])).unwrap().then
    }

    #[test]
    fn first_match_wins_and_bounds_are_inclusive() {
        assert_eq!(ask(1, 64), "short");
        assert_eq!(ask(1, 65), "few");
        assert_eq!(ask(2, 64), "few");
        assert_eq!(ask(3, 64), "any", "a bound on an absent fact does not hold");
        let facts = Facts(vec![("batch", 2), ("capacity", 64)]);
        assert_eq!(TABLE[0].objection(&facts), Some(&Bound::equal("batch", 1)));
        assert_eq!(TABLE[1].objection(&facts), None);
    }

    #[test]
    fn bounds_read_like_conditions() {
        let shown: Vec<String> = TABLE.iter().flat_map(|r| r.when).map(Bound::to_string).collect();
        assert_eq!(shown, ["capacity <= 64", "batch = 1", "1 <= batch <= 2", "pages >= 1"]);
    }
}
