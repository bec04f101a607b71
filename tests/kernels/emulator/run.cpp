// One launch of a kernel in the emulator. SOURCE names the kernel's file, LAUNCH calls it.
#include SOURCE

static const Arguments* arguments;

static void enter() {
  threadIdx.x = current;
  LAUNCH(*arguments);
  threads[current].done = true;
  yield();
}

extern "C" void launch(const Arguments* a, int grid_x, int grid_y, int shared_bytes) {
  arguments = a;
  for (blockIdx.y = 0; blockIdx.y < grid_y; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < grid_x; blockIdx.x++) {
      shared_memory.assign(shared_bytes, 0xff);
      at_barrier = 0;
      for (Thread& t : threads) {
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
      for (bool running = true; running;) {
        running = false;
        for (current = 0; current < THREADS; current++)
          if (!threads[current].done) {
            running = true;
            threadIdx.x = current;
            swapcontext(&scheduler, &threads[current].context);
          }
      }
    }
}
