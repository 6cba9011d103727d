"""The losses of the deep methods: `from hashlens.losses import DTSHLoss`; see hashlens.hashers.losses."""

from hashlens.hashers.deep.classifier_code import ClassifierCodeLoss as ClassifierCodeLoss
from hashlens.hashers.deep.cnnh import CNNHLoss as CNNHLoss
from hashlens.hashers.deep.dlbhc import DLBHCLoss as DLBHCLoss
from hashlens.hashers.deep.dpsh import DPSHLoss as DPSHLoss
from hashlens.hashers.deep.drsch import DRSCHLoss as DRSCHLoss
from hashlens.hashers.deep.drsch import DSCHLoss as DSCHLoss
from hashlens.hashers.deep.dsrh import DSRHLoss as DSRHLoss
from hashlens.hashers.deep.ninh import NINHLoss as NINHLoss
from hashlens.hashers.deep.triplet_losses import DTSHBankLoss as DTSHBankLoss
from hashlens.hashers.deep.triplet_losses import DTSHLoss as DTSHLoss
from hashlens.hashers.deep.triplet_losses import DTSHTripletLoss as DTSHTripletLoss
from hashlens.hashers.losses import *  # noqa: F403
