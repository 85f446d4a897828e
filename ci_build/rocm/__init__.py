"""ROCm for builds: sources, downloads, unpacked trees and locks."""
