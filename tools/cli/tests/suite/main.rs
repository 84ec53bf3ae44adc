//! All tests of the command, in one program.

mod arrows;
mod bench;
mod compare;
mod end_to_end;
mod explain;
mod faults;
mod installed;
mod job;
mod lab;
mod launchers;
mod messages;
mod program;
mod programs_of_others;
mod requirements;
mod settings;
mod sim;
mod timeline;
mod tune;
mod words;
