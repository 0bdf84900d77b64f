"""The shared ledger of a container seen from Python: map, read, check, repair.

Reading never changes the file and needs no native part; `Region.reap` goes through the C implementation, because only
it can hold the region's lock.
"""

from lab.region._file import Process, Region, RegionError
from lab.region._usage import Usage, read_usage

__all__ = ["Process", "Region", "RegionError", "Usage", "read_usage"]
