// What the server and the client offer to Python, called here without it.
#pragma once

#include <cstdint>

#include "client_keys.h"
#include "job.h"

extern "C" {
void *server_open(int cores, const int32_t *cpus);
int server_add_job(void *, const treadle::Job *);
int server_stream(void *, int job, int worker, int slot, int fd);
int server_arena(void *, int job, int worker, int first, int count, const int *slots, int fd, const int *bells);
int server_bell(void *, int slot);
int server_peer(void *, int job, int rack, int slot, int fd);
int server_drop(void *, int job, int worker, const char *why);
int server_events(void *, treadle::Event *out, int most, int timeout_ms);
int server_read(void *, int job, uint64_t version, int part, float *out, uint64_t *updates);
int server_load(void *, int job, uint64_t version, const float *weights, const float *const *states, const uint64_t *updates);
int server_copy(void *, int job, uint64_t version, int part, float *out, uint64_t *updates);
int server_release(void *, int job);
void server_close(void *);
const char *server_message(void *);

void *client_open(const treadle::Layout *);
int64_t client_buffer(void *, int values, int64_t *bytes);  // where it begins in the arena
char *client_arena(void *);
int client_memfd(void *);
int client_bell(void *);
int client_stream(void *, int server, int slot, int fd);
int client_rings(void *, int server, const int *bells);
int client_push(void *, int key, uint64_t step, int op, int empty);
int client_settings(void *, uint64_t step, const double *, int groups);
int client_wait(void *, int key, uint64_t step, int timeout_ms);
const char *client_message();
void client_close(void *);
}
