"""What Statecore is tested with, for users too: conformance suites for stores, replay of the audit, histories."""
