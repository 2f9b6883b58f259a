//! The engine of the guide "An engine's step" in Rust, over the C interface: it admits, decodes, preempts
//! when blocks run out, resumes, runs the copies, and ends sequences. It needs no crates.

use std::ffi::CStr;
use std::os::raw::{c_char, c_void};
use std::ptr::{null, null_mut};

/// What of blockmgr.h this engine needs.
mod blockmgr {
    use super::*;

    pub const OK: i32 = 0;
    pub const OUT_OF_BLOCKS: i32 = 1;

    /// The options begin so. The rest is filled by `blockmgr_options_init`.
    #[repr(C)]
    pub struct Options {
        pub struct_size: usize,
        pub num_blocks: i64,
        pub block_size: i64,
        pub max_seqs: i64,
        pub max_blocks_per_seq: i64,
        pub min_partial_tokens: i64,
        pub watermark_blocks: i64,
        pub numbers: [i64; 8],
        pub flags: [i32; 8],
        pub eviction: *const c_char,
        pub quotas: *const c_void,
        pub num_quotas: usize,
        pub groups: *const c_void,
        pub num_groups: usize,
        pub digest: *const c_void,
        pub digest_context: *mut c_void,
        pub digest_size: i64,
    }

    #[repr(C)]
    pub struct Prompt {
        pub struct_size: usize,
        pub tokens: *const u32,
        pub num_tokens: i64,
        pub name: *const c_void,
        pub name_size: usize,
        pub extras: *const c_void,
        pub num_extras: usize,
        pub num_slots: i64,
        pub max_cached_tokens: i64,
        pub watermark_blocks: i64,
        pub flags: u32,
        pub reserved: u32,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub struct Sequence {
        pub struct_size: usize,
        pub num_tokens: i64,
        pub num_computed_tokens: i64,
        pub num_cached_tokens: i64,
        pub num_blocks: i64,
        pub num_slots: i64,
        pub is_preempted: i32,
        pub state_stands: i32,
        pub num_stops: i64,
        pub stops: [i64; 5],
    }

    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub struct Copy {
        pub source: i32,
        pub destination: i32,
        pub num_tokens: i32,
        pub group: i32,
    }

    /// 31 numbers; their order is that of blockmgr.h.
    #[repr(C)]
    #[derive(Default)]
    pub struct Stats {
        pub struct_size: usize,
        pub before_hits: [i64; 10],
        pub hit_tokens: i64,
        pub before_preemptions: [i64; 10],
        pub preemptions: i64,
        pub others: [i64; 9],
    }

    #[link(name = "blockmgr")]
    extern "C" {
        fn blockmgr_last_error() -> *const c_char;
        pub fn blockmgr_options_init(options: *mut Options, size: usize) -> i32;
        pub fn blockmgr_create(options: *const Options, manager: *mut *mut c_void) -> i32;
        pub fn blockmgr_destroy(manager: *mut c_void);
        pub fn blockmgr_admit(m: *mut c_void, prompt: *const Prompt, handle: *mut i64) -> i32;
        pub fn blockmgr_decode(
            m: *mut c_void, handles: *const i64, tokens: *const u32, count: i64, slots: *mut i64,
        ) -> i32;
        pub fn blockmgr_commit(m: *mut c_void, handle: i64, num_computed: i64) -> i32;
        pub fn blockmgr_free(m: *mut c_void, handle: i64, flags: u32) -> i32;
        pub fn blockmgr_preempt(m: *mut c_void, handle: i64, flags: u32) -> i32;
        pub fn blockmgr_resume(m: *mut c_void, handle: i64, num_slots: i64, flags: u32) -> i32;
        pub fn blockmgr_view(m: *mut c_void, handle: i64, sequence: *mut Sequence) -> i32;
        pub fn blockmgr_tokens(
            m: *mut c_void, handle: i64, tokens: *mut u32, room: i64, count: *mut i64,
        ) -> i32;
        pub fn blockmgr_slot_mapping(
            m: *mut c_void, handle: i64, group: i32, start: i64, stop: i64, slots: *mut i64,
        ) -> i32;
        pub fn blockmgr_take_copies(
            m: *mut c_void, copies: *mut Copy, room: i64, count: *mut i64, ticket: *mut i64,
        ) -> i32;
        pub fn blockmgr_copies_applied(m: *mut c_void, ticket: i64) -> i32;
        pub fn blockmgr_check_invariants(m: *mut c_void) -> i32;
        pub fn blockmgr_get_stats(m: *mut c_void, stats: *mut Stats) -> i32;
    }

    /// Whether the call was done; false if there are not enough blocks. Nothing has changed then.
    pub fn fits(status: i32) -> bool {
        match status {
            OK => true,
            OUT_OF_BLOCKS => false,
            // SAFETY: the text is a C string of this thread, valid until its next failing call.
            _ => panic!("{}", unsafe { CStr::from_ptr(blockmgr_last_error()) }.to_string_lossy()),
        }
    }
}

use blockmgr::*;

/// Stands for a model: reads all of the context, as attention does.
fn sampled(context: &[u32]) -> u32 {
    let sum: u64 = context.iter().zip(1u64..).map(|(&token, at)| u64::from(token) * at).sum();
    (sum % 97) as u32
}

struct Engine {
    manager: *mut c_void,
    block_size: usize,
    kv: Vec<u32>, // stands for the K/V tensors
    waiting: Vec<Vec<u32>>,
    preempted: Vec<i64>,
    running: Vec<(i64, u32)>, // handle, token sampled last
    finished: Vec<Vec<u32>>,
}

// SAFETY, of all calls below: the manager lives as long as the engine, which calls it from one thread;
// pointers are those of live vectors and structs, with the room that is passed beside them.
impl Engine {
    fn new(num_blocks: usize, block_size: usize) -> Engine {
        let mut manager = null_mut();
        unsafe {
            let mut options: Options = std::mem::zeroed();
            assert!(fits(blockmgr_options_init(&mut options, std::mem::size_of::<Options>())));
            options.num_blocks = num_blocks as i64;
            options.block_size = block_size as i64;
            options.watermark_blocks = 1;
            assert!(fits(blockmgr_create(&options, &mut manager)));
        }
        Engine {
            manager,
            block_size,
            kv: vec![0; num_blocks * block_size],
            waiting: vec![],
            preempted: vec![],
            running: vec![],
            finished: vec![],
        }
    }

    fn step(&mut self, max_tokens: usize) {
        self.decode();
        self.admit();
        self.apply_copies();
        for (handle, _) in std::mem::take(&mut self.running) {
            let (tokens, next) = self.forward(handle);
            if tokens.len() < max_tokens {
                self.running.push((handle, next));
                continue;
            }
            self.finished.push(tokens);
            unsafe {
                // Its K/V is written: keep it findable.
                assert!(fits(blockmgr_commit(self.manager, handle, max_tokens as i64)));
                assert!(fits(blockmgr_free(self.manager, handle, 0)));
            }
        }
    }

    fn decode(&mut self) {
        while !self.running.is_empty() {
            let (handles, tokens): (Vec<i64>, Vec<u32>) = self.running.iter().copied().unzip();
            let mut slots = vec![0; handles.len()];
            let count = handles.len() as i64;
            let status = unsafe {
                blockmgr_decode(
                    self.manager, handles.as_ptr(), tokens.as_ptr(), count, slots.as_mut_ptr(),
                )
            };
            if fits(status) {
                return;
            }
            let (newest, _) = self.running.pop().unwrap(); // its last token will be sampled again
            assert!(fits(unsafe { blockmgr_preempt(self.manager, newest, 0) }));
            self.preempted.push(newest);
        }
    }

    fn admit(&mut self) {
        while let Some(&handle) = self.preempted.last() {
            if !fits(unsafe { blockmgr_resume(self.manager, handle, 0, 0) }) {
                return;
            }
            self.preempted.pop();
            self.running.push((handle, 0));
        }
        while let Some(tokens) = self.waiting.first() {
            let prompt = Prompt {
                struct_size: std::mem::size_of::<Prompt>(),
                tokens: tokens.as_ptr(),
                num_tokens: tokens.len() as i64,
                name: null(),
                name_size: 0,
                extras: null(),
                num_extras: 0,
                num_slots: 0,
                max_cached_tokens: 0,
                watermark_blocks: 0,
                flags: 0,
                reserved: 0,
            };
            let mut handle = 0;
            if !fits(unsafe { blockmgr_admit(self.manager, &prompt, &mut handle) }) {
                return; // later, once something is freed
            }
            self.waiting.remove(0);
            self.running.push((handle, 0));
        }
    }

    fn apply_copies(&mut self) {
        // No plan has more copies than there are blocks.
        let mut copies = vec![Copy::default(); self.kv.len() / self.block_size];
        let (mut count, mut ticket) = (0, 0);
        let room = copies.len() as i64;
        assert!(fits(unsafe {
            blockmgr_take_copies(self.manager, copies.as_mut_ptr(), room, &mut count, &mut ticket)
        }));
        for copy in &copies[..count as usize] {
            let source = copy.source as usize * self.block_size;
            let destination = copy.destination as usize * self.block_size;
            self.kv.copy_within(source..source + copy.num_tokens as usize, destination);
        }
        assert!(fits(unsafe { blockmgr_copies_applied(self.manager, ticket) }));
    }

    /// Writes K/V of the new tokens, reads the whole context, samples a token.
    fn forward(&mut self, handle: i64) -> (Vec<u32>, u32) {
        let mut view =
            Sequence { struct_size: std::mem::size_of::<Sequence>(), ..Default::default() };
        assert!(fits(unsafe { blockmgr_view(self.manager, handle, &mut view) }));
        let stop = view.num_tokens;
        let mut tokens = vec![0; stop as usize];
        let mut slots = vec![0; stop as usize];
        let mut count = 0;
        unsafe {
            assert!(fits(blockmgr_tokens(
                self.manager, handle, tokens.as_mut_ptr(), stop, &mut count,
            )));
            assert!(fits(blockmgr_slot_mapping(
                self.manager, handle, 0, 0, stop, slots.as_mut_ptr(),
            )));
        }
        for at in view.num_computed_tokens as usize..stop as usize {
            self.kv[slots[at] as usize] = tokens[at];
        }
        let context: Vec<u32> = slots.iter().map(|&slot| self.kv[slot as usize]).collect();
        (tokens, sampled(&context))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        unsafe { blockmgr_destroy(self.manager) }
    }
}

fn main() {
    let mut engine = Engine::new(12, 4);
    let mut due = vec![];
    for n in 0..8 {
        let mut tokens = vec![9, 8, 7, 6, 5, 4, 3, 2, 10 + n]; // a common prefix
        engine.waiting.push(tokens.clone());
        while tokens.len() < 20 {
            tokens.push(sampled(&tokens));
        }
        due.push(tokens);
    }
    while engine.finished.len() < due.len() {
        engine.step(20);
        assert!(fits(unsafe { blockmgr_check_invariants(engine.manager) }));
    }
    due.sort();
    engine.finished.sort();
    assert_eq!(engine.finished, due, "sharing has changed the output");
    let mut stats = Stats { struct_size: std::mem::size_of::<Stats>(), ..Default::default() };
    assert!(fits(unsafe { blockmgr_get_stats(engine.manager, &mut stats) }));
    println!(
        "{} prompt tokens found in the cache, {} preemptions",
        stats.hit_tokens, stats.preemptions
    );
}
