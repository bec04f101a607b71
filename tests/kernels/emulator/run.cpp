// One launch of a kernel in the emulator. SOURCE names the kernel's file, LAUNCH calls it.
#include SOURCE

static const Arguments* arguments;

static void enter() {
  LAUNCH(*arguments);
  threads[current].done = true;
  yield();
}

static void begin(Thread& t) {
  t.stack.resize(1 << 17);
  t.groups.clear();
  t.open.clear();
  t.done = false;
  getcontext(&t.context);
  t.context.uc_stack.ss_sp = t.stack.data();
  t.context.uc_stack.ss_size = t.stack.size();
  t.context.uc_link = &scheduler;
  makecontext(&t.context, enter, 0);
}

extern "C" void launch(const Arguments* a, int grid_x, int grid_y, int shared_bytes) {
  arguments = a;
  for (blockIdx.y = 0; blockIdx.y < grid_y; blockIdx.y++)
    for (int cluster = 0; cluster < grid_x; cluster += CLUSTER) {
      for (auto& memory : shared_memory) memory.assign(shared_bytes, 0xff);
      for (Barrier& b : cta_barriers) b.arrived = 0;
      for (Thread& t : threads) begin(t);
      for (bool running = true; running;) {
        running = false;
        for (current = 0; current < THREADS * CLUSTER; current++)
          if (!threads[current].done) {
            running = true;
            threadIdx.x = current % THREADS;
            blockIdx.x = cluster + current / THREADS;
            swapcontext(&scheduler, &threads[current].context);
          }
      }
    }
}
