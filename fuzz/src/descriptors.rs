//! Words that a process posts to its order-triggered NIC as descriptors: they are refused by index, or read and carried
//! out until they wait for packets.

use outboard_nic::ordered::descriptor::{Posted, Source};
use outboard_nic::ordered::{Ordered, Settings};
use outboard_nic::{Engine, Node, Output, Port};

/// A post has up to so many packets; those that go back to its own port may send others.
const MOST_OUTPUTS: usize = 100_000;

/// Any words.
///
/// # Panics
/// When what is read is not written as it was, or what is posted goes on for ever.
pub fn play(bytes: &[u8]) {
    let words: Vec<u64> =
        bytes.chunks(8).map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))).collect();
    if let Ok(posted) = Posted::read(&words) {
        let mut again = Vec::new();
        posted.iter().flat_map(Posted::descriptors).for_each(|one| one.write(&mut again));
        assert_eq!(again, words);
    }
    let mut nic = Ordered::new(Node(0), Settings::default());
    let members = [Source { node: 0, port: 0 }, Source { node: 1, port: 3 }];
    for job in 0..4 {
        nic.open(job, Port(0), members).expect("there is room");
    }
    // Whether it is refused is for the words to say.
    let _ = nic.post(0, Port(0), &words);
    for now in 0..MOST_OUTPUTS as u64 {
        match nic.poll() {
            Some(Output::Transmit { to: Node(0), packet, .. }) => nic.handle_packet(now, Node(0), packet),
            Some(_) => {}
            None => return,
        }
    }
    panic!("more than {MOST_OUTPUTS} outputs");
}

/// What lowering makes: the descriptors of a reduction, of a broadcast, of a barrier and of an exchange.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    use outboard_plan::selection::Collective;
    use outboard_plan::{Arguments, Element, Operator, Rank, Reduction, Span, Topology};
    use outboard_plan_tools::ordered::{Call, lower};

    let (topology, sum) = (Topology::flat(2), Reduction::new(Operator::Sum, Element::F64).ok());
    let members = [Source { node: 0, port: 0 }, Source { node: 1, port: 3 }];
    let calls = [
        (Collective::Allreduce, "rabenseifner", 4_000, 8),
        (Collective::Broadcast, "binomial", 3_000, 1),
        (Collective::Barrier, "dissemination", 0, 1),
        (Collective::Alltoall, "pull", 50_000, 1),
    ];
    let one = |(collective, algorithm, bytes, element_bytes): (Collective, &str, u64, u64)| {
        let arguments = Arguments { element_bytes, ..Arguments::of(&topology, bytes) };
        let choice = collective.read(algorithm).expect("an algorithm");
        let lowered = lower(choice, &arguments, &Settings::default()).expect("it fits");
        let reduction = sum.filter(|_| element_bytes == 8);
        let bytes = |span: Span| vec![7; span.len as usize];
        let call = Call { job: 0, members: &members, reduction, input: 0, output: 8_192, bytes: &bytes };
        lowered.words(Rank(0), &call, 0).iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    calls.into_iter().map(one).collect()
}
