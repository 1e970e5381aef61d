#!/bin/sh
# srun with its tasks on the hosts of the plan, in the order of hosts.txt. Inside an allocation of these hosts:
#     sh srun.sh PROGRAM [ARGUMENTS]
# The allocation is made for instance by
#     salloc --nodes=4 --ntasks=8 --nodelist=./hosts.txt
# Besides what Slurm sets, each task finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, as PyTorch asks.
set -eu

SLURM_HOSTFILE=$(cd "$(dirname "$0")" && pwd)/hosts.txt
MASTER_ADDR='gamma.rack-2.example'
MASTER_PORT=${MASTER_PORT:-29500}
WORLD_SIZE=8
export SLURM_HOSTFILE MASTER_ADDR MASTER_PORT WORLD_SIZE

# shellcheck disable=SC2016 # the variables are those of each task
exec srun --distribution=arbitrary --nodes=4 --ntasks=8 \
    sh -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"' srun.sh "$@"
