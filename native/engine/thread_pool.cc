#include "thread_pool.h"

#include <pthread.h>

namespace lbq {

namespace {

// GCC 12's std::condition_variable::wait needs its own libstdc++ at run time; wheels also run with older ones.
template <class IsOver>
void wait(std::condition_variable& condition, std::mutex& locked, IsOver is_over) {
  while (!is_over()) pthread_cond_wait(condition.native_handle(), locked.native_handle());
}

}  // namespace

ThreadPool::ThreadPool(int size) {
  try {
    for (int worker = 1; worker < size; ++worker) threads_.emplace_back([this, worker] { worker_loop(worker); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_over_ = true;
  }
  has_work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t, int)>& run) {
  if (threads_.empty() || count <= 1) {
    for (int64_t task = 0; task < count; ++task) run(task, 0);
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    run_ = &run;
    count_ = count;
    next_ = 0;
    busy_ = static_cast<int>(threads_.size());
    ++turn_;
  }
  has_work_.notify_all();
  run_tasks(0);
  std::lock_guard<std::mutex> lock(mutex_);
  wait(is_done_, mutex_, [this] { return busy_ == 0; });
  if (error_) {
    const std::exception_ptr error = error_;
    error_ = nullptr;
    std::rethrow_exception(error);
  }
}

void ThreadPool::worker_loop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wait(has_work_, mutex_, [&] { return is_over_ || turn_ != seen; });
      if (is_over_) return;
      seen = turn_;
    }
    run_tasks(worker);
    std::lock_guard<std::mutex> lock(mutex_);
    if (--busy_ == 0) is_done_.notify_one();
  }
}

void ThreadPool::run_tasks(int worker) {
  try {
    for (int64_t task; (task = next_.fetch_add(1)) < count_;) (*run_)(task, worker);
  } catch (...) {
    next_ = count_;
    std::lock_guard<std::mutex> lock(mutex_);
    error_ = std::current_exception();
  }
}

}  // namespace lbq
