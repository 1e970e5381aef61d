// Fibers: every thread of every block of a launch, and of all launches queued together, resident in one process. A
// fiber runs until it waits or yields; a seeded generator picks the next one. In half of the runs all are alike; in the
// others every block has a random rank, and goes on only while nothing of a better one can, which lets some blocks lag
// far behind (after "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", PCT). When none can run and
// some have not ended, the program is deadlocked: that is found at once, without a clock.
#pragma once
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#if !defined(__x86_64__) && !defined(TREADLE_UCONTEXT)
#define TREADLE_UCONTEXT  // slower, as every switch asks the kernel for the signal mask
#endif
#ifdef TREADLE_UCONTEXT
#include <ucontext.h>
#endif

namespace treadle::fibers {

constexpr size_t STACK_BYTES = 64 * 1024;
constexpr int LEVELS = 8;

#ifndef TREADLE_UCONTEXT
// Saves the callee-saved registers on the old stack and takes them from the new one.
extern "C" void treadle_switch(void **from, void *to);
asm(R"(
.pushsection .text
.local treadle_switch
.type treadle_switch, @function
treadle_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size treadle_switch, . - treadle_switch
.popsection
)");

struct Context {
    void *stack_pointer = nullptr;

    void prepare(char *stack, void (*entry)()) {
        // The ABI wants the stack 8 bytes off a multiple of 16 where a function begins.
        auto top = reinterpret_cast<void **>((reinterpret_cast<uintptr_t>(stack) + STACK_BYTES) & ~uintptr_t{15});
        *--top = nullptr;
        *--top = reinterpret_cast<void *>(entry);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        stack_pointer = top;
    }
    void enter(Context &from) { treadle_switch(&from.stack_pointer, stack_pointer); }
};
#else
struct Context {
    ucontext_t context;

    void prepare(char *stack, void (*entry)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = STACK_BYTES;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }
    void enter(Context &from) { swapcontext(&from.context, &context); }
};
#endif

struct Block;

struct Fiber {
    Context context;
    std::unique_ptr<char, decltype(&std::free)> stack{nullptr, &std::free};
    Block *block = nullptr;
    int thread = 0;
    bool ended = false;
};

// What eight threads that move one line, or vote, together share: the last to come does the work for all.
struct Line {
    int arrived = 0;
    bool good = true;
    uint32_t votes = 0;
    uint64_t word[16] = {};
    std::vector<Fiber *> waiting;
};

struct Block {
    int index = 0, threads = 0, arrived = 0, level = 0;
    std::function<void()> kernel;
    std::vector<Fiber *> waiting;  // at the barrier
    std::vector<Line> lines;
    void *context = nullptr;  // the kernel's own data
    alignas(128) char shared[48 * 1024];
};

class World {
  public:
    // Adds one launch; nothing runs before `run`.
    void queue(int blocks, int threads, const std::function<void()> &kernel) {
        for (int index = 0; index < blocks; ++index) {
            std::unique_ptr<Block> block(new Block);  // its shared memory is not cleared
            block->index = index;
            block->threads = threads;
            block->kernel = kernel;
            block->lines.resize(threads);
            for (int thread = 0; thread < threads; ++thread) {
                auto fiber = std::make_unique<Fiber>();
                fiber->stack.reset(static_cast<char *>(std::malloc(STACK_BYTES)));
                if (!fiber->stack) throw std::runtime_error("no memory for the stacks of fibers");
                fiber->block = block.get();
                fiber->thread = thread;
                fiber->context.prepare(fiber->stack.get(), &World::begin);
                fibers_.push_back(std::move(fiber));
            }
            blocks_.push_back(std::move(block));
        }
    }

    // Runs all that is queued to its end. True when it ended; false when it was deadlocked: then every wait failed and
    // the fibers ran on to their ends.
    bool run(uint64_t seed) {
        world = this;
        state_ = seed;
        gave_up_ = false;
        const bool alike = random() % 2;
        for (auto &block : blocks_) block->level = alike ? 0 : int(random() % LEVELS);
        for (auto &fiber : fibers_) make_ready(fiber.get());
        for (size_t left = fibers_.size(); left;) {
            current = next();
            if (!current) {
                gave_up_ = true;
                for (auto &entry : sleepers_) wake_all(entry.second);
                sleepers_.clear();
                current = next();
                if (!current) {
                    fibers_.clear();
                    blocks_.clear();
                    throw std::runtime_error("a barrier that not all threads of a block reach");
                }
            }
            current->context.enter(scheduler_);
            left -= current->ended;
        }
        fibers_.clear();
        blocks_.clear();
        return !gave_up_;
    }

    // Gives others a turn now and then: a quarter of the calls, so that long stretches without one happen as well.
    void yield() {
        if (random() % 4) return;
        make_ready(current);
        leave();
    }

    void sleep(const void *address) {
        sleepers_[address].push_back(current);
        leave();
    }

    void wake(const void *address) {
        if (sleepers_.empty()) return;
        auto found = sleepers_.find(address);
        if (found == sleepers_.end()) return;
        wake_all(found->second);
        sleepers_.erase(found);
    }

    void barrier() {
        Block &block = *current->block;
        if (++block.arrived == block.threads) {
            block.arrived = 0;
            wake_all(block.waiting);
            yield();
        } else {
            block.waiting.push_back(current);
            leave();
        }
    }

    // The last of eight neighbouring threads does `work`, then all go on.
    template <class Work>
    Line &together(const Work &work) {
        Line &line = current->block->lines[current->thread / 8];
        if (++line.arrived == 8) {
            line.arrived = 0;
            work(line);
            wake_all(line.waiting);
        } else {
            line.waiting.push_back(current);
            leave();
        }
        return line;
    }

    bool gave_up() const { return gave_up_; }

    inline static thread_local World *world = nullptr;
    inline static thread_local Fiber *current = nullptr;

  private:
    static void begin() {
        current->block->kernel();
        current->ended = true;
        world->leave();
    }

    void leave() { scheduler_.enter(current->context); }

    void make_ready(Fiber *fiber) { ready_[fiber->block->level].push_back(fiber); }

    void wake_all(std::vector<Fiber *> &list) {
        for (Fiber *fiber : list) make_ready(fiber);
        list.clear();
    }

    // Any of the fibers of the best level, null when none is ready.
    Fiber *next() {
        for (auto &level : ready_) {
            if (level.empty()) continue;
            std::swap(level[random() % level.size()], level.back());
            Fiber *fiber = level.back();
            level.pop_back();
            return fiber;
        }
        return nullptr;
    }

    // splitmix64
    uint64_t random() {
        uint64_t z = state_ += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    Context scheduler_;
    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    std::array<std::vector<Fiber *>, LEVELS> ready_;
    std::unordered_map<const void *, std::vector<Fiber *>> sleepers_;
    uint64_t state_ = 0;
    bool gave_up_ = false;
};

}  // namespace treadle::fibers
