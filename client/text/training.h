// How a job is trained, as rows of a table.
#pragma once

#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

class Table;

// All of its TrainingConfig, one subject a row. REQUIRES: a table of two columns.
void AddTraining(const lorad::v1::TrainingConfig& training, Table& table);
// When it is evaluated. REQUIRES: it has a validation dataset.
void AddEvaluations(const lorad::v1::TrainingConfig& training, Table& table);

}  // namespace lorad::client
