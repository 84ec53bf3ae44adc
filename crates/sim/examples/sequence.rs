//! Plays a sequence from a file and prints what it comes to: `sequence FILE`.

fn main() {
    let path = std::env::args().nth(1).expect("sequence FILE");
    let script = std::fs::read(&path).expect("a file");
    match outboard_sim::sequences::play(&script) {
        Ok(tally) => println!("{tally:?}"),
        Err(breach) => println!("{breach}"),
    }
}
