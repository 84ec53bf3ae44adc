//! The chosen algorithm of a collective, and its text form.
//!
//! The form is `name` or `name:setting=value,setting=value`, such as `bruck:ports=3`. Settings that are left out have
//! their defaults. The shown form is read back as the same choice. The table of [`Collective`] lists the settings.

use std::fmt;

use thiserror::Error;

use super::collective::{AlgorithmRow, Collective};
use crate::algorithm::{Algorithm, AlgorithmSettingError, Setting, WHOLE, least};

/// Names of the choices among leaders of hosts. With `MULTI_LEADER` all leaders of all hosts meet.
const HIERARCHICAL: &str = "hierarchical";
const MULTI_LEADER: &str = "multi-leader";

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AlgorithmError {
    #[error("no {collective} algorithm is called `{name}`: choose one of {known}")]
    Name { collective: Collective, name: String, known: String },
    #[error("`{setting}` in `{text}`: write settings as name=value, with commas between them")]
    Form { text: String, setting: String },
    #[error("`{key}={value}` in `{text}`: {source}")]
    Setting { text: String, key: String, value: String, source: AlgorithmSettingError },
}

/// An algorithm of a collective, with its settings.
///
/// Among leaders, written as `hierarchical:leaders=1,between=ring`, the algorithm runs between hosts. The ranks of a
/// host send their data to its leaders and get their results from them (SP-6, SP-7, CD-2). That adds one or two rounds
/// to the algorithm's rounds among the hosts. Only leaders send over the network. An allgather may have several leaders
/// on a host, at most as many as the smallest host has ranks. These leaders share the host's blocks: leader `l`
/// exchanges its share with the leaders `l` of all other hosts (the groups of CD-2's multi-group variant). Written as
/// `multi-leader:leaders=2,between=standard-exchange`, all leaders of all hosts meet in one exchange. Each leader then
/// carries its part of the host's ranks (CD-2).
///
/// Invariant: the collective has this algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Choice {
    collective: Collective,
    leaders: Option<u32>,
    /// Whether all leaders of all hosts meet, instead of leaders of the same number only.
    all_meet: bool,
    algorithm: Algorithm,
}

/// `algorithm` among all ranks; the collective must have it.
pub(super) const fn all(collective: Collective, algorithm: Algorithm) -> Choice {
    Choice { collective, leaders: None, all_meet: false, algorithm }
}

/// `algorithm` among one leader of each host; the collective must have it.
pub(super) const fn led(collective: Collective, algorithm: Algorithm) -> Choice {
    Choice { leaders: Some(1), ..all(collective, algorithm) }
}

/// `algorithm` among two leaders of each host, which all meet; the collective must have it.
pub(super) const fn all_led(collective: Collective, algorithm: Algorithm) -> Choice {
    Choice { leaders: Some(2), all_meet: true, ..all(collective, algorithm) }
}

impl Choice {
    /// `algorithm` among all ranks; `None` where the collective has no such algorithm.
    pub fn among_all(collective: Collective, algorithm: Algorithm) -> Option<Choice> {
        let choice = all(collective, algorithm);
        choice.row().map(|_| choice)
    }

    /// `algorithm` among `leaders` ranks of each host; `None` if the collective has no such choice.
    pub fn among_leaders(collective: Collective, leaders: u32, algorithm: Algorithm) -> Option<Choice> {
        let choice = Choice { leaders: Some(leaders), ..all(collective, algorithm) };
        let several = leaders <= 1 || collective == Collective::Allgather;
        choice.row().filter(|_| several && collective.between_leaders().is_some()).map(|_| choice)
    }

    pub const fn collective(self) -> Collective {
        self.collective
    }

    /// Leaders per host, if only leaders meet; `None` if all ranks do.
    pub const fn leaders(self) -> Option<u32> {
        self.leaders
    }

    /// Whether all leaders of all hosts meet, so that each leader counts as a host.
    pub const fn all_leaders_meet(self) -> bool {
        self.all_meet
    }

    /// The algorithm among all ranks or among leaders.
    pub const fn algorithm(self) -> Algorithm {
        self.algorithm
    }

    pub const fn name(self) -> &'static str {
        match self.leaders {
            Some(_) if self.all_meet => MULTI_LEADER,
            Some(_) => HIERARCHICAL,
            None => self.algorithm.name(),
        }
    }

    /// The row of the choice in the collective's table.
    fn row(self) -> Option<AlgorithmRow> {
        let same = |(other, _): &AlgorithmRow| std::mem::discriminant(other) == std::mem::discriminant(&self.algorithm);
        match self.leaders {
            None => self.collective.table().iter().copied().find(same),
            Some(_) => self.collective.for_leaders().find(same),
        }
    }

    fn keys(self) -> &'static [&'static str] {
        self.row().map_or(&[], |(_, keys)| keys)
    }

    /// The settings and their values, as written in the text form.
    fn settings(mut self) -> Vec<(&'static str, String)> {
        let leaders = self.leaders.filter(|_| self.collective == Collective::Allgather);
        let between = self.leaders.map(|_| ("between", self.algorithm.name().to_owned()));
        let mut settings: Vec<_> = leaders.map(|leaders| ("leaders", leaders.to_string())).into_iter().collect();
        settings.extend(between);
        for key in self.keys() {
            settings.extend(self.algorithm.setting(key).map(|setting| (*key, setting.get().to_string())));
        }
        settings
    }

    /// The first setting below its minimum, with its value and the minimum.
    pub(crate) fn setting_below_minimum(mut self) -> Option<(&'static str, u64, u64)> {
        let keys = self.keys();
        let own = keys.iter().filter_map(|key| Some((*key, self.algorithm.setting(key)?.get(), least(key))));
        self.leaders
            .map(|leaders| ("leaders", leaders.into(), 1))
            .into_iter()
            .chain(own)
            .find(|(_, is, least)| is < least)
    }

    pub fn set(&mut self, key: &str, value: &str) -> Result<(), AlgorithmSettingError> {
        let (collective, keys) = (self.collective, self.keys());
        match (&mut self.leaders, key) {
            (Some(leaders), "leaders") if collective == Collective::Allgather => Setting::Count(leaders).set(value, 1),
            (Some(_), "between") => {
                let found = collective.for_leaders().find(|(algorithm, _)| algorithm.name() == value);
                let names: Vec<&str> = collective.for_leaders().map(|(algorithm, _)| algorithm.name()).collect();
                let expected = || AlgorithmSettingError::expected(format_args!("one of {}", names.join(", ")));
                self.algorithm = found.ok_or_else(expected)?.0;
                Ok(())
            }
            _ if keys.contains(&key) => {
                self.algorithm.setting(key).ok_or(AlgorithmSettingError::Unknown)?.set(value, least(key))
            }
            (Some(_), _) => {
                let with = collective.for_leaders().filter(|(_, keys)| keys.contains(&key));
                let with: Vec<String> = with.map(|(other, _)| format!("between={}", other.name())).collect();
                if with.is_empty() {
                    return Err(AlgorithmSettingError::Unknown);
                }
                Err(AlgorithmSettingError::expected(format_args!("{} before it", with.join(" or "))))
            }
            (None, _) => Err(AlgorithmSettingError::Unknown),
        }
    }

    /// Reads the choice written in `text`, whether it can run or exists only in plans.
    pub fn read(collective: Collective, text: &str) -> Result<Choice, AlgorithmError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let all = collective.algorithms();
        let Some(mut choice) = all.iter().copied().find(|choice| choice.name() == name) else {
            let known: Vec<&str> = all.iter().map(|choice| choice.name()).collect();
            return Err(AlgorithmError::Name { collective, name: name.into(), known: known.join(", ") });
        };
        for setting in settings.split(',').filter(|_| text.contains(':')) {
            let Some((key, value)) = setting.split_once('=') else {
                return Err(AlgorithmError::Form { text: text.into(), setting: setting.into() });
            };
            choice.set(key, value).map_err(|source| AlgorithmError::Setting {
                text: text.into(),
                key: key.into(),
                value: value.into(),
                source,
            })?;
        }
        Ok(choice)
    }

    /// Whether blocks are announced and pulled without a barrier, so that no rank waits for a rank with which it
    /// exchanges no block (SP-5). All other choices begin behind the ready barrier (MC-4).
    pub const fn pulls(self) -> bool {
        let linear = matches!(self.algorithm, Algorithm::Linear) && !matches!(self.collective, Collective::Allgather);
        linear || matches!(self.algorithm, Algorithm::Pull)
    }

    /// The replacement of this choice for a call whose blocks each rank may place anywhere, such as an allgatherv.
    /// Messages of several blocks need adjoining blocks, so allgathers with such messages become a ring.
    pub const fn block_by_block(self) -> Choice {
        match (self.collective, self.leaders, self.algorithm) {
            (Collective::Allgather, None, Algorithm::Ring { .. } | Algorithm::Multicast { .. }) => self,
            (Collective::Allgather, _, _) => all(self.collective, Algorithm::Ring { segment: WHOLE }),
            _ => self,
        }
    }

    pub const fn multicasts(self) -> bool {
        self.algorithm.multicasts()
    }

    /// Whether the choice depends on which ranks share a host; other choices depend only on the number of ranks.
    pub const fn depends_on_hosts(self) -> bool {
        self.leaders.is_some()
            || matches!((self.collective, self.algorithm), (Collective::Reduce, Algorithm::Chain { .. }))
    }

    /// Spreads multicasts over `subgroups` addresses (MC-10), and over `chains` roots at a time if all ranks multicast
    /// (MC-8).
    pub const fn spread(mut self, chains: u32, subgroups: u16) -> Choice {
        self.algorithm = match (self.collective, self.algorithm) {
            (Collective::Allgather, Algorithm::Multicast { .. }) => Algorithm::Multicast { chains, subgroups },
            (_, Algorithm::Multicast { chains, .. }) => Algorithm::Multicast { chains, subgroups },
            (_, Algorithm::ReduceMulticast { .. }) => Algorithm::ReduceMulticast { subgroups },
            (_, Algorithm::ReduceScatterMulticast { segment, .. }) => {
                Algorithm::ReduceScatterMulticast { subgroups, segment }
            }
            (_, other) => other,
        };
        self
    }

    /// The choice that a group of `ranks` ranks uses in place of this one, see [`Algorithm::effective_for`].
    pub fn effective_for(self, ranks: u32) -> Choice {
        let algorithm = if self.leaders.is_none() { self.algorithm.effective_for(ranks) } else { self.algorithm };
        Choice { algorithm, ..self }
    }
}

/// Writes the form that [`Collective::read`] reads.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let mut joint = ':';
        for (key, value) in self.settings() {
            write!(f, "{joint}{key}={value}")?;
            joint = ',';
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_choice_parses_to_the_same_choice() {
        for collective in Collective::ALL {
            assert_eq!(collective.name().parse(), Ok(collective));
            for choice in collective.algorithms() {
                assert_eq!(Choice::read(collective, choice.name()), Ok(choice), "a name alone has the defaults");
                assert!(choice.to_string().starts_with(choice.name()));
            }
            for choice in collective.algorithms().iter().chain(collective.choices()) {
                assert_eq!(Choice::read(collective, &choice.to_string()), Ok(*choice));
                assert_eq!(choice.row().map(|_| choice.collective()), Some(collective));
            }
            assert!(collective.choices().iter().all(|choice| collective.read(&choice.to_string()) == Ok(*choice)));
            assert!(collective.read("magic").is_err_and(|why| why.contains("magic")));
        }
        for (collective, text) in [
            (Collective::Allgather, "bruck:ports=3"),
            (Collective::Allgather, "rotated-bruck:ports=3"),
            (Collective::Allgather, "hierarchical:leaders=2,between=linear"),
            (Collective::Allgather, "multi-leader:leaders=4,between=standard-exchange,ports=1"),
            (Collective::Allgather, "multicast:chains=4,subgroups=2"),
            (Collective::Allgather, "hierarchical:leaders=3,between=neighbour-exchange"),
            (Collective::Allgather, "hierarchical:leaders=3,between=standard-exchange,ports=2"),
            (Collective::Alltoall, "scatter-destination:batch=5"),
            (Collective::Broadcast, "chain:segment=18446744073709551615"),
            (Collective::Broadcast, "multicast:subgroups=4"),
            (Collective::Barrier, "dissemination:ports=3"),
            (Collective::Reduce, "hierarchical:between=halving"),
            (Collective::Reduce, "hierarchical:between=chain,segment=4096"),
            (Collective::Allreduce, "hierarchical:between=ring,segment=4096"),
            (Collective::Allreduce, "reduce-scatter-multicast:subgroups=65535,segment=1"),
            (Collective::ReduceScatter, "hierarchical:between=recursive-halving"),
            (Collective::Scan, "chain:pieces=70000"),
        ] {
            assert_eq!(Choice::read(collective, text).map(|choice| choice.to_string()), Ok(text.to_owned()));
        }
        assert!("magic".parse::<Collective>().is_err_and(|why| why.to_string().contains("reduce-scatter")));
    }

    #[test]
    fn invalid_choice_error_says_expected_values() {
        let wrong = |text: &str| Choice::read(Collective::Allgather, text).unwrap_err().to_string();
        assert_eq!(
            wrong("rings"),
            "no allgather algorithm is called `rings`: choose one of ring, neighbour-exchange, standard-exchange, \
             bruck, rotated-bruck, linear, hierarchical, multi-leader, multicast"
        );
        assert_eq!(wrong("bruck:3"), "`3` in `bruck:3`: write settings as name=value, with commas between them");
        assert_eq!(wrong("bruck:ports=0"), "`ports=0` in `bruck:ports=0`: expected a number from 1");
        assert_eq!(wrong("ring:ports=1"), "`ports=1` in `ring:ports=1`: there is no such setting of this algorithm");
        assert!(
            wrong("hierarchical:ports=2").ends_with("expected between=standard-exchange or between=bruck before it")
        );
        assert!(wrong("hierarchical:between=pull").ends_with("neighbour-exchange, standard-exchange, bruck, linear"));
        assert!(wrong("ring:").starts_with("`` in `ring:`"));
    }

    #[test]
    fn settings_belong_to_their_algorithms() {
        for (collective, texts) in [
            (
                Collective::Allreduce,
                &[
                    "ring:subgroups=1",
                    "ring:segment=0",
                    "hierarchical:leaders=2",
                    "hierarchical:between=rabenseifner,segment=1",
                    "hierarchical:between=multicast",
                    "reduce-multicast:subgroups=0",
                    "reduce-multicast:subgroups=65536",
                    "reduce-multicast:pieces=2",
                ][..],
            ),
            (
                Collective::Reduce,
                &["chain:segment=0", "halving:segment=1", "hierarchical:between=binomial,segment=1", "ring"],
            ),
            (Collective::ReduceScatter, &["recursive-halving:segment=1", "pairwise:segment=0", "multicast"]),
            (Collective::Allgather, &["ring:segment=1", "multicast:subgroups=0", "hierarchical:leaders=0"]),
            (Collective::Broadcast, &["multicast:chains=1", "k-nomial:radix=1", "hierarchical"]),
            (Collective::Alltoall, &["bruck:ports=1", "pairwise:segment=1", "scatter-destination:batch=0"]),
            (Collective::Scan, &["chain:pieces=0", "chain:segment=1"]),
        ] {
            for text in texts {
                assert!(Choice::read(collective, text).is_err(), "{collective} {text}");
            }
        }
        assert_eq!(Choice::among_all(Collective::Scan, Algorithm::Pull), None);
        assert_eq!(Choice::among_leaders(Collective::Scan, 1, Algorithm::RecursiveDoubling), None);
        assert_eq!(Choice::among_leaders(Collective::Reduce, 2, Algorithm::Binomial), None);
    }

    /// The error that rejects an algorithm which exists only in plans lists only algorithms that can run.
    #[test]
    fn plan_only_algorithm_error_lists_runnable_ones() {
        let ports = Collective::Barrier.read("dissemination:ports=3").unwrap_err();
        assert!(ports.contains("ports=3") && ports.contains("ready barrier") && ports.ends_with("ports=1"), "{ports}");
        let uneven = "alltoallv".parse::<Collective>().unwrap_err().to_string();
        assert!(uneven.contains("pulled"), "{uneven}");
    }
}
