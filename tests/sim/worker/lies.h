// Nonsense that a worker may say: what no worker of ours says, made of what it was about to say.
// What could be true (another loss, a failure with a reason) is not among it: nobody can tell.
#pragma once

#include <optional>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::sim {

// Lies are numbered from 0.
int CountLies();
const char* NameOfLie(int lie);
// What the worker says in place of `truth`; none: the lie waits for another message.
std::optional<worker::v1::WorkerMessage> Falsify(int lie, const worker::v1::WorkerMessage& truth);

// Of the header of a shard, numbered by themselves.
int CountShardLies();
const char* NameOfShardLie(int lie);
worker::v1::UploadShardRequest::Header FalsifyShard(
    int lie, const worker::v1::UploadShardRequest::Header& truth);

}  // namespace lorad::sim
